"""Does a flat find a tenant within a week?  An embedding of its district, its area and rent, one hidden layer.

Train it on this machine, with 1 parameter server and 2 workers:

    psruntime run --ps 1 --workers 2 --model my_model

psruntime calls the two functions below in every worker.  Make them yours: read your data in input_fn, build your
model in model_fn.
"""

from pathlib import Path

import tensorflow.compat.v1 as tf

from psruntime import ModelSpec

DATA = "my_model.csv"  # 2,000 flats, made up: district,area,rent,quick
COLUMNS = [tf.string, tf.float32, tf.float32, tf.int64]
DISTRICTS = 32  # rows of the embedding; every name of a district is hashed to one of them
HELD_OUT = 5  # one line in five is for the evaluation; training never sees it


def input_fn(context):
    """Gives a tf.data.Dataset of (features, labels).

    context.mode is "train" or "eval"; context.batch_size, .data_dir and .seed are those of the command line.
    """
    folder = Path(context.data_dir or Path(__file__).parent)
    lines = tf.data.experimental.CsvDataset(str(folder / DATA), COLUMNS, header=True).enumerate()
    if context.mode == "eval":
        lines = lines.filter(lambda number, _: tf.equal(number % HELD_OUT, 0))
    else:
        lines = lines.filter(lambda number, _: tf.not_equal(number % HELD_OUT, 0))
        # The seed differs from worker to worker, so each one sees all flats in an order of its own.
        lines = lines.shuffle(2000, seed=context.seed).repeat()
    return lines.map(lambda _, columns: example(*columns)).batch(context.batch_size).prefetch(2)


def example(district, area, rent, quick):
    """(features, label) of one line of the file, or of many."""
    features = {
        "district": tf.strings.to_hash_bucket_fast(district, DISTRICTS),
        "numbers": tf.stack([tf.log(area / 70), tf.log(rent / 1000)], axis=-1),
    }
    return features, tf.cast(quick, tf.float32)


def model_fn(features, labels, mode, params):
    """Builds the graph on one batch: `mode` is "train" or "eval".  `params` has what is set, as by --set lr=0.003."""
    table = tf.get_variable("districts", [DISTRICTS, 4])
    district = tf.nn.embedding_lookup(table, features["district"])
    hidden = tf.nn.relu(dense(tf.concat([district, features["numbers"]], axis=1), 16, "hidden"))
    logits = tf.squeeze(dense(hidden, 1, "logits"), axis=1)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    if mode == "eval":
        return ModelSpec(loss, metrics={"accuracy": tf.metrics.accuracy(labels, tf.greater(logits, 0.0))})
    return ModelSpec(loss, tf.train.AdamOptimizer, learning_rate=params.get("lr", 1e-2))


def dense(x, units, name):
    """A layer: variables are made with tf.get_variable, so their names say what they are."""
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [x.shape[1], units])
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        return tf.matmul(x, kernel) + bias
