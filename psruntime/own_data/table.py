"""CSV files as one table: its delimiter, its header, its columns, all guessed from the files.

A record that TensorFlow's reader would refuse is refused here, with its file and line.
"""

from __future__ import annotations

import csv
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from psruntime.errors import UsageError

MOST_RECORDS = 100_000  # that are looked at, which takes some seconds
FEWEST_RECORDS = 20  # of which some can be held out
DELIMITERS = ",;\t|"
MOST_DISTINCT = 0.9  # distinct rows, of all, below which a table has many equal ones
LONGEST_FIELD = 1 << 22  # characters; a quote that is not closed makes one of all that follows
LOOKED_AT = 100  # records of which the delimiter and the header are guessed
LONGEST_NAME = 40  # characters
SPACES = " \t\n\v\f\r"  # as tf.strings.strip has them

EMPTY = frozenset(["", "na", "n/a", "nan", "null", "none", "?", "-"])  # fields without a value, in small letters
NUMBER = re.compile(r"\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*", re.ASCII)  # as TensorFlow reads it
_LOOSE = re.compile(r"\s*[-+]?[0-9.,]+\s*")

NO_CSV = {  # first bytes of a file -> what it is, and what to do
    b"\x1f\x8b": "is compressed; unpack it with gunzip",
    b"PK\x03\x04": "is a zip file or a spreadsheet; unpack it, or save it as CSV",
    b"\xd0\xcf\x11\xe0": "is a spreadsheet; save it as CSV",
    b"PAR1": "is a Parquet file; save it as CSV",
    b"\xff\xfe": "is in UTF-16; convert it with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "is in UTF-16; convert it with iconv -f UTF-16 -t UTF-8",
    b"<": "is HTML or XML, not CSV",
    b"{": "is JSON, not CSV",
    b"[{": "is JSON, not CSV",
    b"[\n": "is JSON, not CSV",
}


@dataclass(frozen=True)
class Table:
    """header: the names in the files; empty: they have none.  names: identifiers made of them, or column_1 and so on.

    columns: the fields of each, of all files, without spaces around them.  is_spaced: whether some fields have such.
    """

    files: tuple[Path, ...]
    delimiter: str
    header: tuple[str, ...]
    names: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    is_spaced: bool

    @property
    def rows(self) -> int:
        return len(self.columns[0])

    @property
    def repeats(self) -> bool:
        """Whether many rows are equal."""
        return len(set(zip(*self.columns, strict=True))) < MOST_DISTINCT * self.rows


def read_table(files: Sequence[Path]) -> Table:
    """The table in these files, which have the same columns.

    Raises:
        UsageError: a file cannot be read, has records of different lengths, or there are too few records.
    """
    if twice := [file for file, count in Counter(files).items() if count > 1]:
        raise UsageError(f"{twice[0]} is named twice")
    csv.field_size_limit(LONGEST_FIELD)
    delimiter = _delimiter(files[0])
    first = _first(files[0], delimiter)
    others = (record for file in files for record in islice(_records(file, delimiter, len(first)), 1, None))
    header = has_header([first, *islice(others, LOOKED_AT)])
    rows: list[list[str]] = []
    for file in files:
        records = _records(file, delimiter, len(first))
        begin = next(records, [])
        if not begin:
            raise UsageError(f"{file} is empty; leave it out")
        if header and begin != first:
            place = next(place for place, name in enumerate(first) if begin[place] != name)
            raise UsageError(f"{file}, line 1: column {place + 1} is '{begin[place]}', and '{first[place]}' in "
                             f"{files[0]}; all files need the same header")  # fmt: skip
        rows += [] if header else [begin]
        rows += islice(records, MOST_RECORDS - len(rows))
    if header and first in rows:
        raise UsageError(f"{files[0]} has its header twice, again {rows.index(first) + 1} records below; leave it out")
    if len(rows) < FEWEST_RECORDS:
        raise UsageError(f"{files[0]} has {_number(len(rows), 'record')}; at least {FEWEST_RECORDS} are needed")
    names = names_of(first) if header else tuple(f"column_{number}" for number in range(1, len(first) + 1))
    columns = tuple(zip(*rows, strict=True))
    stripped = tuple(tuple(field.strip(SPACES) for field in column) for column in columns)
    return Table(tuple(files), delimiter, tuple(first) if header else (), names, stripped, stripped != columns)


def _delimiter(file: Path) -> str:
    """The one that cuts most records into the same number of fields, above one; of two such, that cuts out numbers."""
    found: list[tuple[float, float, int, str]] = []
    for delimiter in DELIMITERS:
        records = list(islice(_records(file, delimiter, 0), LOOKED_AT))
        fields = _usual_fields(records)
        numbers = sum(bool(_LOOSE.fullmatch(field)) for record in records for field in record)
        share = sum(len(record) == fields for record in records) / max(1, len(records))
        found += [(share, numbers / sum(map(len, records)), fields, delimiter)] if fields > 1 else []
    if not found and not any(_records(file, DELIMITERS[0], 0)):
        raise UsageError(f"{file} is empty")
    if not found:
        raise UsageError(f"{file} has one column; columns are cut by a comma, semicolon, tab or |")
    return max(found)[-1]


def _usual_fields(records: Sequence[Sequence[str]]) -> int:
    return max(Counter(map(len, records)).items(), key=lambda item: item[1], default=(1, 0))[0]


def _first(file: Path, delimiter: str) -> list[str]:
    """The first record of a file, if the others are like it."""
    records = list(islice(_records(file, delimiter, 0), LOOKED_AT))
    first, usual = records[0], _usual_fields(records)
    if not any(first):
        raise UsageError(f"{file}, line 1: the line is empty; a file begins with a header or a record")
    if len(first) != usual or (usual > 2 and sum(map(bool, first)) == 1):
        what = _number(sum(map(bool, first)), "field")
        raise UsageError(f"{file}, line 1: {what}, where most records have {usual}; a file begins with a header or a "
                         "record, so leave out what is above")  # fmt: skip
    return first


def _records(file: Path, delimiter: str, fields: int) -> Iterator[list[str]]:
    """The records of a file.  fields: how many each must have; 0: any number, and nothing is checked.

    Raises:
        UsageError: a record is not as TensorFlow reads it.
    """
    raw: list[str] = []  # lines of the record
    try:
        records = csv.reader((raw.append(line) or line for line in _lines(file)), delimiter=delimiter)  # type: ignore[func-returns-value]
        line = 1
        for record in records:
            if fields:
                lines = f"line {line}" if records.line_num == line else f"lines {line} to {records.line_num}"
                _check(record, "".join(raw), delimiter, fields, f"{file}, {lines}")
            yield record
            raw.clear()
            line = records.line_num + 1
    except OSError as error:
        hint = f"; name the files in it: {file}/*.csv" if file.is_dir() else ""
        raise UsageError(f"{file} cannot be read: {error.strerror}{hint}") from error
    except csv.Error as error:
        raise UsageError(f"{file}, line {line}: {error}") from error


def _lines(file: Path) -> Iterator[str]:
    with file.open("rb") as data:
        begin = data.read(4)
    if what := next((what for first, what in NO_CSV.items() if begin.startswith(first)), ""):
        raise UsageError(f"{file} {what}")
    with file.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, 1):
            if "\0" in line:
                raise UsageError(f"{file}, line {number}: a NUL character, which text in UTF-8 does not have")
            if not line.isascii() and (bad := re.search("[\udc80-\udcff]", line)):
                raise UsageError(f"{file}, line {number}: character {bad.start() + 1} is not in UTF-8; convert the "
                                 "file with iconv, for example from LATIN1")  # fmt: skip
            yield line


def _check(record: list[str], raw: str, delimiter: str, fields: int, where: str) -> None:
    if '"' in raw and (number := stray_quote(raw, delimiter)):
        raise UsageError(f"{where}: column {number} has a quote within a field that is not quoted, or one that is not "
                         'closed; write it as "5"" pipe"')  # fmt: skip
    if not raw.strip("\r\n "):
        raise UsageError(f"{where}: the line is empty; correct it, or leave it out")
    if len(record) != fields:
        raise UsageError(f"{where}: {_number(len(record), 'field')}, where the first record has {fields}; correct it, "
                         "or leave it out")  # fmt: skip


def stray_quote(raw: str, delimiter: str) -> int:
    """The number of the first field, from 1, that TensorFlow does not read for its quotes; 0: there is none."""
    field = rf'(?:"(?:[^"]|"")*"|[^"\r\n{re.escape(delimiter)}]*)'
    good = re.match(rf"(?:{field}{re.escape(delimiter)})*", raw)
    assert good is not None
    if re.fullmatch(rf"{field}[\r\n]*", raw[good.end() :]):
        return 0
    return len(re.findall(rf"{field}{re.escape(delimiter)}", good[0])) + 1


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def is_empty(field: str) -> bool:
    """Whether a field has no value."""
    return field.strip().lower() in EMPTY


def has_header(records: Sequence[Sequence[str]]) -> bool:
    """Whether the first of these records names the columns: it has text above numbers, or fields unlike the others."""
    first = records[0]
    others = [record for record in records if record != first]
    if not others:
        return False
    columns = [[field for field in column if not is_empty(field)] for column in zip(*others, strict=True)]
    are_numbers = [bool(column) and all(map(NUMBER.fullmatch, column)) for column in columns]
    is_name = [not NUMBER.fullmatch(name) and not is_empty(name) for name in first]
    if any(number and name for number, name in zip(are_numbers, is_name, strict=True)):
        return True
    if any(map(NUMBER.fullmatch, first)) or not all(first[1:]) or len({*first}) < len(first) or any(are_numbers):
        return False
    is_once = len(others) == len(records) - 1
    return is_once and not any(name in column for name, column in zip(first, columns, strict=True))


def names_of(header: Sequence[str]) -> tuple[str, ...]:
    """Identifiers for the columns, as names of variables need them."""
    names: list[str] = []
    for number, text in enumerate(header, 1):
        name = base = identifier_of(text) or f"column_{number}"
        while name in (*names, "numbers"):  # which is a feature
            name = f"{base}_{number}"
            number += 1
        names.append(name)
    return tuple(names)


def identifier_of(text: str) -> str:
    """A name in ASCII, as snake case has it; empty if the text has neither letters nor digits of it."""
    text = unicodedata.normalize("NFKD", re.sub(r"([a-z])([A-Z])", r"\1_\2", text.replace("ß", "ss")))
    name = re.sub("[^a-z0-9]+", "_", re.sub("[\u0300-\u036f]", "", text.lower()))[:LONGEST_NAME].strip("_")
    return name if not name or name[0].isalpha() else f"column_{name}"
