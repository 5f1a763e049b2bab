"""What each column of a table is to a model: a number, a category, the label, or nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, pstdev

from psruntime.config.settings import suggestion
from psruntime.errors import UsageError
from psruntime.own_data.table import NUMBER, Table

EMPTY = frozenset(["", "na", "n/a", "nan", "null", "none", "?", "-"])  # fields without a value, in small letters
MOST_WORDS = 50  # of a category that the model names; one with more is hashed
FEWEST = 3  # rows that have a word for it to be named
MOST_CLASSES, MOST_NUMBERED_CLASSES = 100, 20  # of a label that is text, that is whole numbers
UNIQUE = 0.95  # distinct values per row above which a column names its row

NUMBERS, WORDS, HASHED, LEFT_OUT = "numbers", "words", "hashed", "left out"  # kinds of columns
BINARY, CLASSES = "binary", "classes"  # of labels, beside NUMBERS

_LOOSE = re.compile(r"[-+]?([0-9]+[.,]?[0-9]*|[.,][0-9]+)([eE][-+]?[0-9]+)?")  # a number without its unit
_UNITS = re.compile(r"[$€£%\s]")
_DATE = re.compile(
    r"\s*([0-9]{4}[-/.][0-9]{1,2}([-/.][0-9]{1,2})?|[0-9]{1,2}[-/.][0-9]{1,2}[-/.]([0-9]{4}|[0-9]{2}))"
    r"([T ][0-9]{1,2}:[0-9]{2}\S*( ?[AP]M)?)?\s*|\s*[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?\s*"
)
_ID = re.compile(r"(^|.*_)(id|uuid|guid|key|index|row|nr)|unnamed.*")
_LABEL = re.compile(r"label|target|y|class|outcome")
_YES = frozenset(["yes", "y", "true", "t", "positive", "pos"])


@dataclass(frozen=True)
class Column:
    """One that is read.  why: the reason why it is left out.

    is_text: whether it must be read as text: all but plain numbers.  empty: the fields that have no value.
    scale: of numbers, (typical value, spread).  words: the named ones.  buckets: of a hash.
    """

    name: str
    kind: str
    why: str = ""
    is_text: bool = True
    empty: tuple[str, ...] = ()
    scale: tuple[float, float] = (0.0, 1.0)
    words: tuple[str, ...] = ()
    buckets: int = 0


@dataclass(frozen=True)
class Label:
    """words: of classes all values, of a binary label the one that counts as 1.  trivial: what a guess without any
    column reaches, for people."""

    column: Column
    kind: str
    words: tuple[str, ...]
    trivial: str


@dataclass(frozen=True)
class Guess:
    """A label and the columns to predict it from, in the order of the table, the label among them."""

    label: Label
    columns: tuple[Column, ...]

    def of(self, kind: str) -> list[Column]:
        """The columns of a kind, without the label."""
        return [column for column in self.columns if column.kind == kind and column.name != self.label.column.name]


def guess(table: Table, label: str = "") -> Guess:
    """What the columns are.

    label: the name of the label's column, or its number from 1; empty: one with a usual name, or else the last that
    can be one.

    Raises:
        UsageError: there is no such column, or it is no label; or no other column can be learned from.
    """
    columns = {name: column_of(name, fields) for name, fields in zip(table.names, table.columns, strict=True)}
    found = _label(table, columns, label)
    result = Guess(found, tuple(columns.values()))
    if not any(result.of(kind) for kind in (NUMBERS, WORDS, HASHED)):
        raise UsageError(f"{table.files[0]} has no column from which {found.column.name} can be predicted")
    return result


def column_of(name: str, fields: Sequence[str]) -> Column:
    """What a column with these fields is, unless it is the label."""
    filled = [text for text in fields if text.strip().lower() not in EMPTY]
    counts, empty = Counter(filled), _empty(fields)
    numbers = _numbers(filled)
    is_text = numbers is None or not all(not text or NUMBER.fullmatch(text) for text in fields)
    is_unique = len(counts) >= UNIQUE * len(filled)
    if len(counts) < 2 and not (counts and empty):
        return Column(name, LEFT_OUT, "always the same" if counts else "always empty")
    if all(map(_DATE.fullmatch, counts)):
        return Column(name, LEFT_OUT, "dates")
    if numbers and not (_ID.fullmatch(name) or (is_unique and _counts_up(numbers))):
        return Column(name, NUMBERS, "", is_text, empty, _scale(numbers))
    if is_unique:
        return Column(name, LEFT_OUT, "nearly every row has its own")
    words = tuple(sorted(word for word, count in counts.items() if count >= FEWEST))
    if len(counts) <= MOST_WORDS and words:
        return Column(name, WORDS, words=words)
    return Column(name, HASHED, buckets=2 ** (2 * len(counts)).bit_length())


def _empty(fields: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({text for text in fields if text.strip().lower() in EMPTY}))


def number_of(text: str) -> float:
    """The number in a text, with a point or a comma and perhaps a unit.

    Raises:
        ValueError: it is none.
    """
    text = _UNITS.sub("", text)
    if not _LOOSE.fullmatch(text):
        raise ValueError(text)
    return float(text.replace(",", "."))


def _numbers(filled: Sequence[str]) -> list[float] | None:
    try:
        return [number_of(text) for text in filled]
    except ValueError:
        return None


def _counts_up(numbers: Sequence[float]) -> bool:
    """Whether each is the one before plus 1: numbers of rows."""
    return all(after - before == 1 for before, after in pairwise(numbers))


def _scale(numbers: Sequence[float]) -> tuple[float, float]:
    """Median and spread, which few wild values do not move: a third of what nine in ten values span."""
    ordered = sorted(numbers)
    spread = (ordered[int(0.95 * (len(ordered) - 1))] - ordered[int(0.05 * (len(ordered) - 1))]) / 3
    return median(ordered), spread or pstdev(ordered) or 1.0


def _label(table: Table, columns: dict[str, Column], wanted: str) -> Label:
    fields = dict(zip(table.names, table.columns, strict=True))
    if wanted:
        name = table.names[int(wanted) - 1] if wanted.isdecimal() and 0 < int(wanted) <= len(fields) else wanted
        name = name if name in fields else re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        if name not in fields:
            hint = suggestion(name, fields) or f"; the columns are {', '.join(fields)}"
            raise UsageError(f"--label: {table.files[0]} has no column {wanted}{hint}")
        return label_of(columns[name], fields[name])
    usual = [name for name in fields if _LABEL.fullmatch(name)]
    for name in [*usual, *reversed(fields)]:
        try:
            return label_of(columns[name], fields[name])
        except UsageError:
            continue
    raise UsageError(f"{table.files[0]} has no column that can be a label; name one with --label")


def label_of(column: Column, fields: Sequence[str]) -> Label:
    """The label in a column: of two values, of some classes, or a number.

    Raises:
        UsageError: it has one value, or too many texts.
    """
    filled = [text for text in fields if text.strip().lower() not in EMPTY]
    counts, numbers = Counter(filled), _numbers(filled)
    empty = _empty(fields)
    if len(counts) < 2 or column.why == "dates":
        raise UsageError(f"--label: column {column.name} has {column.why or 'one value'}, which is nothing to predict")
    if len(counts) == 2:
        one = _positive(counts)
        share = 100 * counts[one] / len(filled)
        return Label(
            Column(column.name, BINARY, empty=empty), BINARY, (one,), f"{_plain(one)} in {share:.3g} % of the rows"
        )
    is_whole = numbers is not None and all(number.is_integer() for number in numbers)
    if numbers and not (is_whole and len(counts) <= MOST_NUMBERED_CLASSES):
        scale = fmean(numbers), pstdev(numbers)
        described = Column(column.name, NUMBERS, "", column.is_text, empty, scale)
        return Label(described, NUMBERS, (), f"{scale[0]:.4g} on average, with a standard deviation of {scale[1]:.4g}")
    if len(counts) > min(MOST_CLASSES, len(filled) / 2):
        raise UsageError(f"--label: column {column.name} has {len(counts)} different texts, too many to be classes")
    (most, count), *_ = counts.most_common(1)
    often = f"{_plain(most)} in {100 * count / len(filled):.3g} % of the rows"
    return Label(Column(column.name, CLASSES, empty=empty), CLASSES, tuple(sorted(counts)), often)


def _plain(text: str) -> str:
    return " ".join(text.split())


def _positive(counts: Counter[str]) -> str:
    """The value that counts as 1: the larger number, a yes, or else the rarer one."""
    if _numbers(list(counts)):
        return max(counts, key=number_of)
    return max(counts, key=lambda word: (word.strip().lower() in _YES, -counts[word], word))
