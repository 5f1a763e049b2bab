"""embedding_tables with the dynamic embeddings of TensorFlow Recommenders Addons, between graphs, async.

A model module of stock_layers.py, which this runs in an environment of its own (peer_environment.py):

    .venv-tfra/bin/python -m benchmarks.tfra_tables --model benchmarks.tfra_tables, and more flags of stock_layers.py
    .venv-tfra/bin/python -m benchmarks.tfra_tables --losses STEPS --address HOST:PORT --batch-size B

The second one makes so many steps alone, as ps and worker at once, from table_data.parameters(), and prints `loss
VALUE` before each.

Ids, labels, layers, loss, optimizer and learning rate are those of embedding_tables.py.  These differ:

- A table is a hash table over all ps, of ids that were seen: it begins empty, and draws a row's initial values when the
  row is first looked up.
- It is TensorFlow 2.16, the last one that the Addons are built for.
- Each lookup takes every id of a batch once.  The state of the optimizer comes to the worker with the row; the worker
  computes both anew and writes them back, so that one of two workers with the same row at once may lose its update.
- There is no mode sync: the accumulators of SyncReplicasOptimizer do not take the gradients of such tables.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1
from tensorflow_recommenders_addons import dynamic_embedding

from benchmarks import stock_layers
from benchmarks.step_times import StepTimes
from benchmarks.table_data import HIDDEN, INITIAL, INITIAL_ACCUMULATOR, LEARNING_RATE, Tables, drawn, here, parameters
from psruntime import Context, ModelSpec

MADE = "tables"  # the collection of all
OPTIMIZERS = {
    "adagrad": partial(tf1.train.AdagradOptimizer, initial_accumulator_value=INITIAL_ACCUMULATOR),
    "adam": tf1.train.AdamOptimizer,
    "sgd": tf1.train.GradientDescentOptimizer,
}


def input_fn(context: Context) -> Any:
    """As embedding_tables.input_fn."""
    drawn_here = drawn(here(), context.batch_size, context.worker_index)
    dataset = tf1.data.Dataset.from_tensor_slices(drawn_here).batch(context.batch_size, drop_remainder=True)
    return dataset.cache().prefetch(2)


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:  # noqa: ARG001 - the same in every mode
    """Squared error of a layer of HIDDEN units on the concatenated rows.  parts: the number of ps."""
    tables = here()
    rows = tf1.concat([looked_up(tables, number, features[:, number]) for number in range(tables.count)], axis=1)
    kernel = tf1.get_variable("kernel", [tables.count * tables.width, HIDDEN], use_resource=True)
    head = tf1.get_variable("head", [HIDDEN, 1], use_resource=True)
    error = tf1.matmul(tf1.nn.relu(tf1.matmul(rows, kernel)), head)[:, 0] - labels
    return ModelSpec(tf1.reduce_mean(tf1.square(error)), optimizer, LEARNING_RATE, hooks=[StepTimes()])


def optimizer(rate: Any) -> Any:
    """Of the tables and of the layers."""
    return dynamic_embedding.DynamicEmbeddingOptimizer(OPTIMIZERS[here().optimizer](rate))


def looked_up(tables: Tables, number: int, ids: Any) -> Any:
    """The rows of a table, summed over the ids of an example, [batch, width]."""
    table = dynamic_embedding.get_variable(
        f"table_{number}",
        dim=tables.width,
        devices=[f"/job:ps/replica:0/task:{index}" for index in range(tables.parts)],
        initializer=tf1.random_uniform_initializer(-INITIAL, INITIAL),
    )
    tf1.add_to_collection(MADE, table)
    return tf1.reduce_sum(dynamic_embedding.embedding_lookup_unique(table, ids, name=f"lookup_{number}"), axis=1)


def losses(steps: int, batch_size: int, address: str) -> None:
    """Prints that of each step."""
    tf1.disable_v2_behavior()
    server = tf1.train.Server(tf1.train.ClusterSpec({"ps": [address]}), "ps", 0)
    context = Context("train", 0, 1, batch_size, "", seed=0)
    features, labels = tf1.data.make_one_shot_iterator(input_fn(context).repeat()).get_next()
    spec = model_fn(features, labels, "train")
    update = optimizer(LEARNING_RATE).minimize(spec.loss)
    values, rows = parameters(here()), np.arange(here().rows)
    layers = [variable for variable in tf1.global_variables() if variable.op.name in values]
    with tf1.Session(server.target) as session:
        session.run(tf1.global_variables_initializer())
        session.run([table.upsert(rows, values[table.name]) for table in tf1.get_collection(MADE)])
        session.run([layer.assign(values[layer.op.name]) for layer in layers])
        for _ in range(steps):
            print(f"loss {session.run([spec.loss, update])[0]:.9f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--losses", type=int, default=0)
    parser.add_argument("--address")
    parser.add_argument("--batch-size", type=int)
    given, _ = parser.parse_known_args()
    if given.losses:
        losses(given.losses, given.batch_size, given.address)
    else:
        stock_layers.main()


if __name__ == "__main__":
    main()
