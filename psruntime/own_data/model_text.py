"""The text of a model module for a table: what is read in constants at its head, then functions that use them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from psruntime.own_data.columns import BINARY, CLASSES, HASHED, NUMBERS, WORDS, Column, Guess, Label
from psruntime.own_data.table import Table

LINE = 120  # characters

HEAD = '''"""Predicts {label} by the other columns of {files}.

Train it on this machine, with 1 parameter server and 2 workers:

    psruntime run --ps 1 --workers 2 --model {name}

`psruntime init` wrote it after a look at {rows:,} rows.  It is a start: make it yours.
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
{named}{labelled}    rows = rows.filter(lambda row: tf.equal(is_held_out(row), context.mode == "eval"))
    if context.mode == "train":
        # The seed differs from worker to worker, so each one sees the rows in an order of its own.
        rows = rows.shuffle(10_000, seed=context.seed).repeat()
    return rows.batch(context.batch_size).map(lambda row: (features_of(row), labels_of(row))).prefetch(2)


def is_held_out(row):
    """Whether a row is for the evaluation.  {decides}"""
    fields = [field if field.dtype == tf.string else tf.as_string(field) for field in row.values()]
    return tf.equal(tf.strings.to_hash_bucket_fast(tf.strings.join(fields, ","), HELD_OUT), 0)


def features_of(row):
    """What the model knows of a batch of rows: a tensor for each column, of shape [batch]."""
    features = {{}}
'''
NAMED = {  # whether many rows are equal -> how a row gets the names of its fields, and what decides on which side it is
    False: (
        "    rows = rows.map(lambda *fields: dict(zip(COLUMNS, fields)))\n",
        "Its fields decide, so equal rows are all on one side.",
    ),
    True: (
        '    rows = rows.enumerate().map(lambda n, fields: {**dict(zip(COLUMNS, fields)), "row number": n})\n',
        "Its fields and its number decide, as many rows are equal.",
    ),
}
OF_NUMBERS = "    numbers = [scaled({number}, *NUMBERS[name]) for name in NUMBERS]\n"
OF_EMPTY = "    numbers += [tf.cast(tf.math.is_nan({number}), tf.float32) for name in MAY_BE_EMPTY]\n"
STACKED = '    features["numbers"] = tf.stack(numbers, axis=1)\n'
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

def scaled(number, typical, spread):
    """About -2 to 2, and 0 for an empty field; wild values are cut."""
    number = tf.clip_by_value((number - typical) / spread, -10, 10)
    return tf.where(tf.math.is_nan(number), tf.zeros_like(number), number)
'''
AS_NUMBER = '''

def as_number(field):
    """The number in a text, with a point or a comma and perhaps a unit; NaN if there is none."""
    if field.dtype != tf.string:
        return field
    text = tf.strings.regex_replace(tf.strings.regex_replace(field, "[$€£%\\\\s]", ""), ",", ".")
    is_number = tf.strings.regex_full_match(text, "[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?")
    return tf.strings.to_number(tf.where(is_number, text, tf.fill(tf.shape(text), "nan")))
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
{embedded}    hidden = tf.nn.relu(dense(tf.concat(inputs, axis=1), HIDDEN, "hidden"))
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
    BINARY: """    logits = tf.squeeze(dense(hidden, 1, "logits"), axis=1)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    probability = tf.sigmoid(logits)
    metrics = None
    if mode == "eval":
        metrics = {"auc": tf.metrics.auc(labels, probability)}
    rate, predictions = params.get("lr", RATE), {"probability": probability}
    return ModelSpec(loss, tf.train.AdamOptimizer, rate, predictions=predictions, metrics=metrics)
""",
    CLASSES: """    logits = dense(hidden, len(CLASSES), "logits")
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    number = tf.argmax(logits, axis=1)
    predictions = {"class": tf.gather(CLASSES, number), "probabilities": tf.nn.softmax(logits)}
    metrics = None
    if mode == "eval":
        metrics = {"accuracy": tf.metrics.accuracy(labels, number)}
    return ModelSpec(loss, tf.train.AdamOptimizer, params.get("lr", RATE), predictions=predictions, metrics=metrics)
""",
    NUMBERS: """    mean, deviation = LABEL_SCALE
    outcome = mean + deviation * tf.squeeze(dense(hidden, 1, "outcome"), axis=1)
    loss = tf.reduce_mean(tf.square((outcome - labels) / deviation))
    metrics = None
    if mode == "eval":
        metrics = {"rmse": tf.metrics.root_mean_squared_error(labels, outcome)}
    rate, predictions = params.get("lr", RATE), {LABEL: outcome}
    return ModelSpec(loss, tf.train.AdamOptimizer, rate, predictions=predictions, metrics=metrics)
""",
}
DENSE = '''

def dense(x, units, name):
    """A layer: variables are made with tf.get_variable, so their names say what they are."""
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [x.shape[1], units])
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        return tf.matmul(x, kernel) + bias
'''
SERVING = '''

def serving_input_fn():
    """For `psruntime export`: (features, the columns that a client gives)."""
    names = [{names}]
    row = {{name: tf.placeholder(tf.string if COLUMNS[name] == "" else tf.float32, [None], name) for name in names}}
    return features_of(row), row
'''


def model_text(name: str, table: Table, guess: Guess, folder: Path) -> str:
    """The module `name`, which is written into `folder`."""
    label, numbers, words, hashed = guess.label, guess.of(NUMBERS), guess.of(WORDS), guess.of(HASHED)
    read = [*numbers, *([label.column] if label.kind == NUMBERS else [])]
    number = "as_number(row[name])" if any(column.is_text for column in read) else "row[name]"
    may_be_empty = [column.name for column in numbers if column.empty]
    named, decides = NAMED[table.repeats]
    parts = [
        HEAD.format(
            label=label.column.name, files=", ".join(file.name for file in table.files), name=name, rows=table.rows,
            imports="import math\n" if any(not column.is_text for column in read) else "",
        ),
        _constants(table, guess, may_be_empty, folder),
        INPUT.format(
            header=table.header, delimiter="" if table.delimiter == "," else f", field_delim={table.delimiter!r}",
            labelled=_labelled(label, number), named=named, decides=decides,
        ),
        (OF_NUMBERS + OF_EMPTY * bool(may_be_empty)).format(number=number) + STACKED if numbers else "",
        OF_WORDS * bool(words), OF_HASHED * bool(hashed), "    return features\n",
        LABELS[label.kind].format(number=number.replace("name", "LABEL")),
        SCALED * bool(numbers), AS_NUMBER * (number != "row[name]"), PLACE_IN * bool(words or label.kind == CLASSES),
        MODEL.format(
            numbers='features["numbers"]' if numbers else "",
            embedded=OF_TABLES[bool(words), bool(hashed)] + EMBEDDED if words or hashed else "",
        ),
        ENDS[label.kind], DENSE,
        SERVING.format(names=", ".join(f"*{kind.upper()}" for kind in (NUMBERS, WORDS, HASHED) if guess.of(kind))),
    ]  # fmt: skip
    return "".join(parts)


def _labelled(label: Label, number: str) -> str:
    """The line that leaves out the rows without a label."""
    if not label.column.empty:
        return ""
    there = f"~tf.math.is_nan({number.replace('name', 'LABEL')})"
    if label.kind != NUMBERS:
        there = f"tf.reduce_all(tf.not_equal(row[LABEL], {_list(label.column.empty)}))"
    return f"    rows = rows.filter(lambda row: {there})  # only rows with a label\n"


def _constants(table: Table, guess: Guess, may_be_empty: list[str], folder: Path) -> str:
    label, files = guess.label, [_from(folder, file) for file in table.files]
    lines = [
        _assigned("FILES", files, "in --data-dir, or else in the folder of this module"),
        "COLUMNS = {  # name -> what an empty field counts as, which has the dtype of the column",
    ]
    for column in guess.columns:
        of_label = column.name == label.column.name
        column = label.column if of_label else column
        why = f"  # left out: {column.why}" if column.why and not of_label else ""
        is_number = column.kind == NUMBERS and not column.is_text
        lines.append(f'    "{column.name}": {"math.nan" if is_number else chr(34) * 2},{why}')
    lines += ["}", f'LABEL = "{label.column.name}"']
    if label.kind == NUMBERS:
        lines.append(f"LABEL_SCALE = {_scale(label.column)}  # mean and standard deviation")
    elif label.kind == BINARY:
        lines.append(f"POSITIVE = {_quoted(label.words[0])}  # {label.trivial}; any other value is negative")
    else:
        lines.append(_assigned("CLASSES", list(label.words), label.trivial))
    if numbers := guess.of(NUMBERS):
        scales = "".join(f'    "{column.name}": {_scale(column)},\n' for column in numbers)
        lines.append(f"NUMBERS = {{  # name -> (typical value, spread)\n{scales}}}")
    if may_be_empty:
        lines.append(_assigned("MAY_BE_EMPTY", may_be_empty, "whether one is, is an input too"))
    if words := guess.of(WORDS):
        named = "".join(_entry(column) for column in words)
        lines.append(f"WORDS = {{  # of columns with few values; all others share row 0 of the embedding\n{named}}}")
    if hashed := guess.of(HASHED):
        buckets = "".join(f'    "{column.name}": {column.buckets},\n' for column in hashed)
        lines.append(f"HASHED = {{  # of columns with many values: rows of the embedding\n{buckets}}}")
    lines += [
        "HELD_OUT = 5  # one row in five is for the evaluation; training never sees it",
        "HIDDEN, RATE = 32, 3e-3",
    ]
    lines += ["WIDTH = 4  # of an embedding"] * bool(guess.of(WORDS) or guess.of(HASHED))
    return "\n".join(lines) + "\n"


def _assigned(name: str, values: list[str], about: str) -> str:
    line = f"{name} = {_list(values)}  # {about}"
    return line if len(line) <= LINE else f"{name} = [  # {about}\n{_wrapped(values, 4)}]"


def _entry(column: Column) -> str:
    line = f'    "{column.name}": {_list(column.words)},\n'
    return line if len(line) <= LINE else f'    "{column.name}": [\n{_wrapped(column.words, 8)}    ],\n'


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _list(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(_quoted, texts))}]"


def _wrapped(texts: Iterable[str], indent: int) -> str:
    """The elements of a list, as many on a line as it has room for."""
    lines, line = "", ""
    for element in (f"{_quoted(text)}, " for text in texts):
        if line and indent + len(line) + len(element) > LINE:
            lines, line = f"{lines}{' ' * indent}{line.rstrip()}\n", ""
        line += element
    return f"{lines}{' ' * indent}{line.rstrip()}\n"


def _scale(column: Column) -> str:
    typical, spread = (float(f"{number:.6g}") for number in column.scale)
    return f"({typical!r}, {spread!r})"


def _from(folder: Path, file: Path) -> str:
    """The path of a file as the module has it: from its folder, if the file is below."""
    file, folder = file.absolute(), folder.absolute()
    return str(file.relative_to(folder) if file.is_relative_to(folder) else file)
