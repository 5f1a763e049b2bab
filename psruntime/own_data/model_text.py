"""The text of a model module for a table: what is read in constants at its head, then functions that use them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from psruntime.own_data import parts
from psruntime.own_data.columns import BINARY, CLASSES, HASHED, NUMBERS, WORDS, Column, Guess, Label
from psruntime.own_data.table import Table

LINE, LONGEST_TITLE = 120, 60  # characters
FEW_ROWS = 2000  # below which a hash may hold out too few of them
USED = (NUMBERS, WORDS, HASHED)  # kinds of columns
HELD_OUT, GOLDEN_RATIO = 0.2, 0.618034  # as in the module
MOST_SHIFTS = 50
PENALTIES = {NUMBERS: 0.1, BINARY: 0.02, CLASSES: 0.02}  # on large weights, up to 300 rows; above, the less the more


def model_text(name: str, table: Table, guess: Guess, folder: Path) -> str:
    """The module `name`, which is written into `folder`."""
    label, numbers, words, hashed = guess.label, guess.of(NUMBERS), guess.of(WORDS), guess.of(HASHED)
    read = [*numbers, *([label.column] if label.kind == NUMBERS else [])]
    number = "as_number(row, name)" if any(column.is_text for column in read) else "row[name]"
    may_be_empty = [column.name for column in numbers if column.empty]
    by_number = table.repeats or table.rows < FEW_ROWS
    held_out, is_held_out = parts.HELD_OUT[by_number]
    texts = [
        parts.HEAD.format(
            label=label.column.name, files=_in_words(table.files), name=name, rows=table.rows, trivial=label.trivial,
            imports="import math\n" if any(not column.is_text for column in read) else "",
        ),
        _constants(table, guess, may_be_empty, folder),
        f"SHIFT = {_shift(table, label)}  # of the row numbers, so that both sides have all classes\n" * by_number,
        parts.INPUT.format(
            header=bool(table.header), delimiter="" if table.delimiter == "," else f", field_delim={table.delimiter!r}",
            stripped=parts.STRIPPED * table.is_spaced, labelled=_labelled(label, number), held_out=held_out,
        ),
        is_held_out, parts.AS_STRIPPED * table.is_spaced, parts.FEATURES,
        (parts.OF_NUMBERS_AND_EMPTY if may_be_empty else parts.OF_NUMBERS).format(number=number) if numbers else "",
        parts.OF_WORDS * bool(words), parts.OF_HASHED * bool(hashed), "    return features\n",
        parts.LABELS[label.kind].format(number=number.replace("name", "LABEL")),
        parts.SCALED * bool(numbers), _as_number(read), parts.PLACE_IN * bool(words or label.kind == CLASSES),
        parts.MODEL.format(
            numbers='features["numbers"]' if numbers else "",
            embedded=parts.OF_TABLES[bool(words), bool(hashed)] + parts.EMBEDDED if words or hashed else "",
        ),
        parts.ENDS[label.kind], parts.DENSE,
        parts.SERVING.format(
            names=", ".join(f"*{kind.upper()}" for kind in USED if guess.of(kind)),
            given="stripped(row)" if table.is_spaced else "row",
        ),
    ]  # fmt: skip
    return "".join(texts)


def _shift(table: Table, label: Label) -> int:
    """The one with which the held-out rows of each class come closest to their share."""
    fields = table.columns[table.names.index(label.column.name)]
    classes = [field for field in fields if field not in label.column.empty]
    if label.kind == NUMBERS or table.rows >= FEW_ROWS:
        return 0
    share = {word: HELD_OUT * count for word, count in Counter(classes).items()}

    def too_few(shift: int) -> float:
        held_out = Counter(word for n, word in enumerate(classes, shift) if n * GOLDEN_RATIO % 1 < HELD_OUT)
        return sum(abs(held_out[word] - wanted) / wanted for word, wanted in share.items())

    return min(range(MOST_SHIFTS), key=too_few)


def _as_number(columns: list[Column]) -> str:
    """The function that reads numbers in text, if a column has such."""
    marked = 'tf.strings.regex_replace(row[name], MARKS.get(name, ""), "")'
    text = marked if any(column.marks for column in columns) else "row[name]"
    return parts.AS_NUMBER.format(text=text) if any(column.is_text for column in columns) else ""


def _in_words(files: Sequence[Path]) -> str:
    names = [re.sub(r'[\s"\\]+', " ", file.name) for file in files]
    return ", ".join(names) if len(names) < 5 else f"{names[0]} and {len(names) - 1} other files"


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
    for column, title in zip(guess.columns, table.header or table.names, strict=True):
        of_label = column.name == label.column.name
        column = label.column if of_label else column
        about = [_in_header(title, column.name), f"left out: {column.why}" if column.why and not of_label else ""]
        comment = "  # " * any(about) + "; ".join(filter(None, about))
        is_number = column.kind == NUMBERS and not column.is_text
        lines.append(f'    "{column.name}": {"math.nan" if is_number else chr(34) * 2},{comment}')
    lines += ["}", f'LABEL = "{label.column.name}"']
    if label.kind == NUMBERS:
        lines.append(f"LABEL_SCALE = {_scale(label.column)}  # mean and standard deviation")
    elif label.kind == BINARY:
        lines.append(f"POSITIVE = {_quoted(label.words[0])}  # {label.about}; any other value is negative")
    else:
        lines.append(_assigned("CLASSES", list(label.words), label.about))
    if numbers := guess.of(NUMBERS):
        scales = "".join(f'    "{column.name}": {_scale(column)},\n' for column in numbers)
        lines.append(f"NUMBERS = {{  # name -> (typical value, spread)\n{scales}}}")
    if marked := [column for column in [*numbers, label.column] if column.marks]:
        marks = "".join(f'    "{column.name}": {_quoted(column.marks)},\n' for column in marked)
        lines.append(f"MARKS = {{  # a regular expression of what is taken out of numbers in text\n{marks}}}")
    if may_be_empty:
        lines.append(_assigned("MAY_BE_EMPTY", may_be_empty, "whether one is, is an input too"))
    if words := guess.of(WORDS):
        named = "".join(_entry(column) for column in words)
        lines.append(f"WORDS = {{  # of columns with few values; all others share row 0 of the embedding\n{named}}}")
    if hashed := guess.of(HASHED):
        buckets = "".join(f'    "{column.name}": {column.buckets},\n' for column in hashed)
        lines.append(f"HASHED = {{  # of columns with many values: rows of the embedding\n{buckets}}}")
    penalty = PENALTIES[label.kind] * min(1, 300 / table.rows)
    lines += [
        f"HELD_OUT = {HELD_OUT}  # share of the rows for the evaluation; training never sees them",
        f"PENALTY = {penalty:.2g}  # on large weights, which learn few rows by heart",
        "HIDDEN, RATE = 32, 3e-3",
    ]
    lines += ["WIDTH = 4  # of an embedding"] * bool(guess.of(WORDS) or guess.of(HASHED))
    return "\n".join(lines) + "\n"


def _in_header(title: str, name: str) -> str:
    """How the header calls a column, if that differs."""
    title = " ".join(title.split())
    return title[:LONGEST_TITLE] if title.lower() != name else ""


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
