"""The parts of a model module for a table, of which model_text.py takes those that its columns and its label need."""

from __future__ import annotations

from psruntime.own_data.columns import BINARY, CLASSES, NUMBERS

HEAD = '''"""Predicts {label} by the other columns of {files}.

Train it on this machine, with 1 parameter server and 2 workers:

    psruntime run --ps 1 --workers 2 --model {name}

`psruntime init` wrote it after a look at {rows:,} rows.  A mere guess has {trivial} on the rows that are held out.

It is a start: make it yours.  NUMBERS, WORDS and HASHED, below, say which columns are used and how; one that is left
out gets an entry there.  model_fn has the layers, and the metrics, to which you may add any of tf.metrics.
"""

{imports}from pathlib import Path

import tensorflow.compat.v1 as tf

from psruntime import ModelSpec

'''

INPUT = '''

def input_fn(context):
    """Gives a tf.data.Dataset of (features, labels).

    context.mode is "train" or "eval"; context.batch_size, .data_dir and .seed are those of the command line.
    """
    folder = Path(context.data_dir or Path(__file__).parent)
    files = [str(folder / file) for file in FILES]
    rows = tf.data.experimental.CsvDataset(files, list(COLUMNS.values()), header={header}{delimiter})
    rows = rows.map(lambda *fields: dict(zip(COLUMNS, fields)))
{stripped}{labelled}{held_out}    if context.mode == "train":
        # The seed differs from worker to worker, so each one sees the rows in an order of its own.
        rows = rows.shuffle(10_000, seed=context.seed).repeat()
    return rows.batch(context.batch_size).map(lambda row: (features_of(row), labels_of(row))).prefetch(2)

'''
STRIPPED = "    rows = rows.map(stripped)\n"
HELD_OUT = {  # whether the row's number decides, or else its fields -> how the rows of one side are found, and by what
    False: (
        '    rows = rows.filter(lambda row: tf.equal(is_held_out(row), context.mode == "eval"))\n',
        '''
def is_held_out(row):
    """Whether a row is for the evaluation.  Its fields decide, so equal rows are all on one side."""
    fields = [field if field.dtype == tf.string else tf.as_string(field) for field in row.values()]
    return tf.strings.to_hash_bucket_fast(tf.strings.join(fields, ","), 1000) < int(1000 * HELD_OUT)
''',
    ),
    True: (
        '    rows = rows.enumerate().filter(lambda number, _: tf.equal(is_held_out(number), context.mode == "eval"))\n'
        "    rows = rows.map(lambda _, row: row)\n",
        '''
def is_held_out(number):
    """Whether the row of this number is for the evaluation.  Steps of the golden ratio spread these evenly."""
    return tf.cast(number + SHIFT, tf.float64) * 0.618034 % 1 < HELD_OUT
''',
    ),
}
FEATURES = '''

def features_of(row):
    """What the model knows of a batch of rows: "numbers", of shape [batch, n], and others of shape [batch]."""
    features = {}
'''
OF_NUMBERS = """    numbers = tf.stack([{number} for name in NUMBERS], axis=1)
    features["numbers"] = scaled(numbers)
"""
OF_NUMBERS_AND_EMPTY = """    numbers = tf.stack([{number} for name in NUMBERS], axis=1)
    is_empty = tf.stack([tf.math.is_nan({number}) for name in MAY_BE_EMPTY], axis=1)
    features["numbers"] = tf.concat([scaled(numbers), tf.cast(is_empty, tf.float32)], axis=1)
"""
OF_WORDS = """    for name, words in WORDS.items():
        features[name] = place_in(words, row[name])
"""
OF_HASHED = """    for name, rows in HASHED.items():
        features[name] = tf.strings.to_hash_bucket_fast(row[name], rows)
"""

LABELS = {
    BINARY: '''

def labels_of(row):
    """1 for POSITIVE, 0 for any other value."""
    return tf.cast(tf.equal(row[LABEL], POSITIVE), tf.float32)
''',
    CLASSES: '''

def labels_of(row):
    """The number of the class, from 0."""
    return place_in(CLASSES, row[LABEL]) - 1
''',
    NUMBERS: '''

def labels_of(row):
    """The number itself."""
    return {number}
''',
}

SCALED = '''

def scaled(numbers):
    """Mostly -2 to 2, and 0 for an empty field; asinh makes wild values as small as a logarithm would."""
    typical, spread = zip(*NUMBERS.values())
    numbers = tf.asinh(tf.clip_by_value((numbers - typical) / spread, -1e6, 1e6))
    return tf.where(tf.math.is_nan(numbers), tf.zeros_like(numbers), numbers)
'''
AS_NUMBER = '''

def as_number(row, name):
    """The numbers of a column, with a point or a comma; NaN for a text without one."""
    if COLUMNS[name] != "":
        return row[name]
    text = {text}
    text = tf.strings.regex_replace(tf.strings.strip(text), ",", ".")
    is_number = tf.strings.regex_full_match(text, "[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?")
    return tf.strings.to_number(tf.where(is_number, text, tf.fill(tf.shape(text), "nan")))
'''
AS_STRIPPED = '''

def stripped(row):
    """The texts without the spaces around them."""
    return {name: tf.strings.strip(field) if field.dtype == tf.string else field for name, field in row.items()}
'''
PLACE_IN = '''

def place_in(words, field):
    """The place of each text among the words, from 1; 0 for any other text."""
    return tf.argmax(tf.equal(field[:, tf.newaxis], ["", *words]), axis=1)
'''

MODEL = '''

def model_fn(features, labels, mode, params):
    """Builds the graph on one batch: `mode` is "train" or "eval".  `params` has what is set, as by --set lr=0.01."""
    inputs = [{numbers}]
{embedded}    hidden, of_hidden = dense(tf.concat(inputs, axis=1), HIDDEN, "hidden")
'''
OF_TABLES = {
    (True, False): "    tables = {name: len(words) + 1 for name, words in WORDS.items()}\n",
    (False, True): "    tables = HASHED\n",
    (True, True): "    tables = {**{name: len(words) + 1 for name, words in WORDS.items()}, **HASHED}\n",
}
EMBEDDED = """    for name, rows in tables.items():
        table = tf.get_variable(f"{name}_table", [rows, WIDTH], initializer=tf.random_normal_initializer(stddev=0.05))
        inputs.append(tf.nn.embedding_lookup(table, features[name]))
"""
ENDS = {
    BINARY: """    logits, of_logits = dense(tf.nn.relu(hidden), 1, "logits")
    logits = tf.squeeze(logits, axis=1)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    if mode == "train":
        loss += PENALTY * (of_hidden + of_logits)
    probability = tf.sigmoid(logits)
    metrics = None
    if mode == "eval":
        metrics = {"auc": tf.metrics.auc(labels, probability)}
    rate, predictions = params.get("lr", RATE), {"probability": probability}
    return ModelSpec(loss, tf.train.AdamOptimizer, rate, predictions=predictions, metrics=metrics)
""",
    CLASSES: """    logits, of_logits = dense(tf.nn.relu(hidden), len(CLASSES), "logits")
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    if mode == "train":
        loss += PENALTY * (of_hidden + of_logits)
    number = tf.argmax(logits, axis=1)
    predictions = {"class": tf.gather(CLASSES, number), "probabilities": tf.nn.softmax(logits)}
    metrics = None
    if mode == "eval":
        metrics = {"accuracy": tf.metrics.accuracy(labels, number)}
    return ModelSpec(loss, tf.train.AdamOptimizer, params.get("lr", RATE), predictions=predictions, metrics=metrics)
""",
    NUMBERS: """    mean, deviation = LABEL_SCALE
    outcome, of_outcome = dense(tf.nn.relu(hidden), 1, "outcome")
    outcome = mean + deviation * tf.squeeze(outcome, axis=1)
    loss = tf.reduce_mean(tf.square((outcome - labels) / deviation))
    if mode == "train":
        loss += PENALTY * (of_hidden + of_outcome)
    metrics = None
    if mode == "eval":
        metrics = {"rmse": tf.metrics.root_mean_squared_error(labels, outcome)}
    rate, predictions = params.get("lr", RATE), {LABEL: outcome}
    return ModelSpec(loss, tf.train.AdamOptimizer, rate, predictions=predictions, metrics=metrics)
""",
}
DENSE = '''

def dense(x, units, name):
    """A layer, and the size of its weights.  Variables made with tf.get_variable have names that say what they are."""
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [x.shape[1], units])
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        return tf.matmul(x, kernel) + bias, tf.nn.l2_loss(kernel)
'''
SERVING = '''

def serving_input_fn():
    """For `psruntime export`: (features, the columns that a client gives)."""
    names = [{names}]
    row = {{name: tf.placeholder(tf.string if COLUMNS[name] == "" else tf.float32, [None], name) for name in names}}
    return features_of({given}), row
'''
