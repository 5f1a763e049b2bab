"""CSV files as one table: its delimiter, its header, its columns, all guessed from the files.

A record that TensorFlow's reader would refuse is refused here, with its file and line.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from psruntime.errors import UsageError

MOST_RECORDS = 100_000  # that are looked at, which takes some seconds
DELIMITERS = ",;\t|"
MOST_DISTINCT = 0.9  # distinct rows, of all, below which a table has many equal ones
LOOKED_AT = 100  # records of which the delimiter and the header are guessed


@dataclass(frozen=True)
class Table:
    """names: identifiers, made of the header, or column_1 and so on.  columns: the fields of each, of all files."""

    files: tuple[Path, ...]
    delimiter: str
    header: bool
    names: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]

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
        UsageError: a file cannot be read, or has records of different lengths.
    """
    delimiter = _delimiter(files[0])
    first = next(_records(files[0], delimiter, 0))
    if not any(first):
        raise UsageError(f"{files[0]}, line 1: the line is empty; a file begins with a header or a record")
    head = list(islice(_records(files[0], delimiter, len(first)), LOOKED_AT))
    header = has_header(head)
    rows: list[list[str]] = []
    for file in files:
        records = _records(file, delimiter, len(first))
        if header and (found := next(records, first)) != first:
            raise UsageError(f"{file} begins with {','.join(found)}, and {files[0]} with {','.join(first)}")
        rows += islice(records, MOST_RECORDS - len(rows))
    if not rows:
        raise UsageError(f"{files[0]} has a header and no records")
    names = names_of(first) if header else tuple(f"column_{number}" for number in range(1, len(first) + 1))
    return Table(tuple(files), delimiter, header, names, tuple(zip(*rows, strict=True)))


def _delimiter(file: Path) -> str:
    """The one that cuts most records into the same number of fields, above one."""
    found: list[tuple[float, int, str]] = []
    for delimiter in DELIMITERS:
        counts = Counter(len(record) for record in islice(_records(file, delimiter, 0), LOOKED_AT))
        fields, records = max(counts.items(), key=lambda item: item[1], default=(1, 0))
        found += [(records / counts.total(), fields, delimiter)] if fields > 1 else []
    if not found and not any(_records(file, DELIMITERS[0], 0)):
        raise UsageError(f"{file} is empty")
    if not found:
        raise UsageError(f"{file} has one column; columns are cut by a comma, semicolon, tab or |")
    return max(found)[2]


def _records(file: Path, delimiter: str, fields: int) -> Iterator[list[str]]:
    """The records of a file.  fields: how many each must have; 0: any number, and nothing is checked.

    Raises:
        UsageError: a record is not as TensorFlow reads it.
    """
    raw: list[str] = []  # lines of the record
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            records = csv.reader((raw.append(line) or line for line in lines), delimiter=delimiter)  # type: ignore[func-returns-value]
            line = 1
            for record in records:
                if fields:
                    _check(record, "".join(raw), fields, f"{file}, line {line}")
                yield record
                raw.clear()
                line = records.line_num + 1
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{file} is not in UTF-8: {error.reason} at byte {error.start}; convert it with iconv"
        ) from error
    except csv.Error as error:
        raise UsageError(f"{file}, line {line}: {error}") from error


def _check(record: list[str], raw: str, fields: int, where: str) -> None:
    if len(record) != fields:
        what = "the line is empty" if not record else f"{len(record)} fields, where the first record has {fields}"
        raise UsageError(f"{where}: {what}; correct it, or leave it out")
    if any('"' in field for field in record) and '""' not in raw:
        raise UsageError(f'{where}: a quote within a field that is not quoted; write it as "5"" pipe"')


NUMBER = re.compile(r"\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*")  # as TensorFlow reads it


def has_header(records: Sequence[Sequence[str]]) -> bool:
    """Whether the first of these records names the columns: it has other fields than the others."""
    first, others = records[0], records[1:]
    if not others or not all(first[1:]) or len(set(first)) < len(first) or any(map(NUMBER.fullmatch, first)):
        return False
    columns = [[field for field in column if field] for column in zip(*others, strict=True)]
    has_numbers = any(column and all(map(NUMBER.fullmatch, column)) for column in columns)
    return has_numbers or not any(name in column for name, column in zip(first, columns, strict=True))


def names_of(header: Sequence[str]) -> tuple[str, ...]:
    """Identifiers for the columns, as names of variables need them."""
    names: list[str] = []
    for number, text in enumerate(header, 1):
        name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or f"column_{number}"
        name = name if name[0].isalpha() else f"column_{name}"
        names.append(name if name not in (*names, "numbers") else f"{name}_{number}")  # "numbers" is a feature
    return tuple(names)
