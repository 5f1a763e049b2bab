"""The place of a record that TensorFlow cannot read from a CSV file, and the remedy.

TensorFlow's error has the number of the field alone, so the file is read again until such a record.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.graph.base.types import Array, Graph
from psruntime.own_data.table import stray_quote

MOST_RECORDS = 1_000_000  # of a file that are read again, which takes a second or two
_FIELD = re.compile(r"Field (\d+)(?: in record(?: \d+)?)? is (?:required but missing|not a valid (\w+): ([^\n\[]*))")
_FIELDS = re.compile(r"Expect (\d+) fields but have (\d+) in record")
_QUOTES = re.compile(
    r"Unquoted fields cannot have quotes|Quote(d field has| inside a string has) to|without closing quote"
)


class Source(NamedTuple):
    """A file of CSV that an input reads.  columns: the numbers of those that are read; empty: all."""

    file: str
    delimiter: str = ","
    header: bool = False
    empty: str = ""
    columns: tuple[int, ...] = ()


class Place(NamedTuple):
    """Of the first record of a kind.  column: its name in the header, if there is one."""

    file: str
    line: int
    column: str


def explained(reason: str, graph: Graph) -> str:
    """What follows an error of the input: where the first such record is, and what to do; empty for another error.

    graph: in which the dataset was made.
    """
    if _QUOTES.search(reason):
        where = next((f"{source.file}, line {place.line}, column {place.column}" for source in sources(graph)
                      if (place := quote_of(source))), "")  # fmt: skip
        return f'; write a quote within a field as "5"" pipe"{where and f"; the first such record is in {where}"}'
    found = _FIELD.search(reason) or _FIELDS.search(reason)
    if not found:
        return ""
    if found.re is _FIELDS:
        wanted, count = int(found[1]), int(found[2])
        where = _first(graph, -1, "", count)
        return f"{where and f'; such a record is {where}'}; every record needs {wanted} fields, as COLUMNS has"
    number, dtype, text = int(found[1]), found[2], (found[3] or "").strip()
    where = _first(graph, number, text, 0) or f"in column {number + 1}"
    if dtype is None:
        return f"; the field is empty {where}: give the column a default in COLUMNS, as [0.0] in place of tf.float32"
    return f"; it is {where}: correct the record, or read the column as tf.string in COLUMNS"


def _first(graph: Graph, number: int, text: str, count: int) -> str:
    for source in sources(graph):
        if place := place_of(source, number, text, count):
            column = f"in column {number + 1}{place.column and f' ({place.column})'}, " if number >= 0 else ""
            return f"{column}line {place.line} of {place.file}"
    return ""


@cache
def place_of(source: Source, number: int, text: str, count: int) -> Place | None:
    """The first record with this text in the field of this number, of those that are read; or of `count` fields."""
    records = _records(source)
    _, header, _ = next(records, (0, [], "")) if source.header else (0, [], "")
    column = source.columns[number] if source.columns else number
    for line, record, _ in records:
        field = record[column] if 0 <= column < len(record) else None
        head = None if field is None else "" if field == source.empty else field.strip().partition("\n")[0]
        if len(record) == count or head == text:
            return Place(source.file, line, header[column] if 0 <= column < len(header) else "")
    return None


@cache
def quote_of(source: Source) -> Place | None:
    """The first record with a quote that TensorFlow does not read; column: its number, from 1."""
    found = ((line, stray_quote(raw, source.delimiter)) for line, _, raw in _records(source) if '"' in raw)
    return next((Place(source.file, line, str(column)) for line, column in found if column), None)


def _records(source: Source) -> Iterator[tuple[int, list[str], str]]:
    """The records of a file: the line where one begins, its fields, and its text."""
    raw: list[str] = []
    with suppress(OSError, csv.Error), open(source.file, newline="", encoding="utf-8-sig", errors="replace") as lines:
        records = csv.reader((raw.append(line) or line for line in lines), delimiter=source.delimiter)  # type: ignore[func-returns-value]
        line = 1
        for record in islice(records, MOST_RECORDS):
            yield line, record, "".join(raw)
            raw.clear()
            line = records.line_num + 1


def sources(graph: Graph) -> Iterator[Source]:
    """The files that the datasets of a graph read as CSV, as far as their names are constants in it."""
    datasets = [op for op in graph.get_operations() if "CSVDataset" in op.type]
    for op in datasets:
        files, _, _, header, delimiter, _, empty, columns = map(tf1.get_static_value, op.inputs[:8])
        for file in _texts(files):
            yield Source(file, _text(delimiter), bool(header), _text(empty), tuple(map(int, columns)))
    if not datasets:
        constants = [op for op in graph.get_operations() if op.type == "Const" and op.outputs[0].dtype == tf1.string]
        files = [text for op in constants for text in _texts(tf1.get_static_value(op.outputs[0]))]
        yield from (Source(file, *how) for file in files if os.path.isfile(file) for how in _decoders(graph))


def _decoders(graph: Graph) -> Iterator[tuple[str, bool, str, tuple[int, ...]]]:
    """The settings of each tf.io.decode_csv in the functions of a graph."""
    for function in graph.as_graph_def().library.function:
        for node in function.node_def:
            if node.op == "DecodeCSV":
                columns = tuple(node.attr["select_cols"].list.i)
                yield _text(node.attr["field_delim"].s), False, _text(node.attr["na_value"].s), columns


def _texts(names: Array | None) -> list[str]:
    return [] if names is None else [_text(name) for name in names.ravel()]


def _text(name: bytes | Array) -> str:
    return bytes(name.item() if isinstance(name, np.ndarray) else name).decode(errors="replace")
