"""What each column of a table is to a model: a number, a category, the label, or nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, pstdev

from psruntime.config.settings import suggestion
from psruntime.errors import UsageError
from psruntime.own_data.table import FEWEST_RECORDS, NUMBER, Table, identifier_of, is_empty

MOST_WORDS = 50  # of a category that the model names; one with more is hashed
FEWEST = 3  # rows that have a word for it to be named
MOST_CLASSES, MOST_NUMBERED_CLASSES = 1000, 20  # of a label that is text, that is whole numbers
FEWEST_OF_TWO = 5  # rows of either value of a binary label, of which one is held out
MOST_OTHERS, MOST_OTHER_WORDS = 0.3, 0.1  # fields without a number in a column of numbers: of all, of the distinct ones
MOST_NAMES, LONGEST_WORD = 20, 40  # columns, and characters of a value, in a message
UNIQUE = 0.95  # distinct values per row above which a column names its row

NUMBERS, WORDS, HASHED, LEFT_OUT = "numbers", "words", "hashed", "left out"  # kinds of columns
BINARY, CLASSES = "binary", "classes"  # of labels, beside NUMBERS

_LOOSE = re.compile(r"[-+]?([0-9]+[.,]?[0-9]*|[.,][0-9]+)([eE][-+]?[0-9]+)?")  # a number without its marks
_UNIT = re.compile(r"[$€£¥%'_\s]|USD|EUR|GBP|CHF")
_ENDING = re.compile(r"[^\W\d_]+\.?$")
_GROUPED = {mark: re.compile(rf"[-+]?[1-9][0-9]{{,2}}([{mark}][0-9]{{3}})+") for mark in ",."}  # by thousands
_CODE = re.compile(r"0[0-9]+")
_GREATEST = 3e38  # of a float32
_DATE = re.compile(
    r"\s*([0-9]{4}[-/.][0-9]{1,2}([-/.][0-9]{1,2})?|[0-9]{1,2}[-/.][0-9]{1,2}[-/.]([0-9]{4}|[0-9]{2}))"
    r"([T ][0-9]{1,2}:[0-9]{2}\S*( ?[AP]M)?)?\s*|\s*[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?\s*"
)
_ID = re.compile(r"(^|.*_)(id|uuid|guid|key|index|row|nr|zip|zip_?code|post_?code|postal_code|plz)|unnamed.*")
_LABEL = re.compile(r"label|target|y|class|outcome|response|survived|churn(ed)?|species|diagnosis|(is_)?(fraud|spam)")
_YES = frozenset(["yes", "y", "true", "t", "positive", "pos"])


@dataclass(frozen=True)
class Column:
    """One that is read.  why: the reason why it is left out.

    is_text: whether it must be read as text: all but plain numbers.  empty: the fields that have no value.
    marks: a regular expression of what stands in numbers and is no part of them.
    scale: of numbers, (typical value, spread).  words: the named ones.  buckets: of a hash.
    """

    name: str
    kind: str
    why: str = ""
    is_text: bool = True
    empty: tuple[str, ...] = ()
    marks: str = ""
    scale: tuple[float, float] = (0.0, 1.0)
    words: tuple[str, ...] = ()
    buckets: int = 0


@dataclass(frozen=True)
class Label:
    """words: of classes all values, of a binary label the one that counts as 1.

    For people: about: its values; trivial: the metric of a guess without any column.
    """

    column: Column
    kind: str
    words: tuple[str, ...]
    about: str
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
        why = ", ".join(f"{column.name} ({column.why})" for column in result.of(LEFT_OUT))
        raise UsageError(f"{table.files[0]} has no column from which {found.column.name} can be predicted: {why}")
    return result


@dataclass(frozen=True)
class _Numbers:
    """The numbers in a column, what has to be taken out of their texts, and the texts without one."""

    values: list[float]
    marks: str
    others: frozenset[str]


def column_of(name: str, fields: Sequence[str]) -> Column:
    """What a column with these fields is, unless it is the label."""
    filled = _filled(fields)
    counts = Counter(filled)
    numbers = _numbers(counts)
    is_unique = len(counts) >= UNIQUE * len(filled)
    if len(counts) < 2 and not (counts and len(filled) < len(fields)):
        return Column(name, LEFT_OUT, "always the same" if counts else "always empty")
    if all(map(_DATE.fullmatch, counts)):
        return Column(name, LEFT_OUT, "dates")
    if numbers and not (_ID.fullmatch(name) or (is_unique and _counts_up(numbers.values))):
        return _column_of_numbers(name, fields, numbers, _scale(numbers.values))
    if is_unique:
        return Column(name, LEFT_OUT, "nearly every row has its own")
    words = tuple(sorted(word for word, count in counts.items() if count >= FEWEST))
    if len(counts) <= MOST_WORDS and words:
        return Column(name, WORDS, words=words)
    return Column(name, HASHED, buckets=2 ** (2 * len(counts)).bit_length())


def _column_of_numbers(name: str, fields: Sequence[str], numbers: _Numbers, scale: tuple[float, float]) -> Column:
    empty = tuple(sorted({text for text in fields if is_empty(text)} | numbers.others))
    is_text = bool(numbers.others) or not all(not text or NUMBER.fullmatch(text) for text in fields)
    return Column(name, NUMBERS, "", is_text, empty, numbers.marks, scale)


def _filled(fields: Sequence[str]) -> list[str]:
    return [text for text in fields if not is_empty(text)]


def _numbers(counts: Counter[str]) -> _Numbers | None:
    """The numbers in fields, given with how often each is there; None: too many have none."""
    if any(map(_CODE.fullmatch, counts)):
        return None
    marks = _marks(counts)
    found: dict[str, float] = {}
    for text in counts:
        with suppress(ValueError):
            found[text] = number_of(text, marks)
    others = counts.keys() - found.keys()
    if not found or len(others) > max(len(found) > 1, MOST_OTHER_WORDS * len(found)):
        return None
    if sum(counts[text] for text in others) > MOST_OTHERS * counts.total():
        return None
    values = [found[text] for text in counts.elements() if text in found]
    return _Numbers(values, marks, frozenset(others))


def _marks(texts: Iterable[str]) -> str:
    """A regular expression of what stands in these numbers and is no part of them: units, and marks of thousands."""
    texts = [text for text in texts if not NUMBER.fullmatch(text)]
    with_digits = [text for text in texts if any(map(str.isdecimal, text))]
    marks = {mark for text in with_digits for mark in _UNIT.findall(text)}
    endings = {found[0] if (found := _ENDING.search(text)) else "" for text in with_digits}
    marks |= endings if len(endings) == 1 and len(with_digits) >= MOST_OTHERS * len(texts) else set()
    bare = [re.sub(_joined(marks), "", text) for text in with_digits]
    for mark, other in (",.", ".,"):
        marked = [text for text in bare if mark in text]
        both = [text for text in marked if other in text]
        is_grouped = marked and all(map(_GROUPED[mark].fullmatch, marked)) and (mark == "," or _is_twice(mark, marked))
        if is_grouped or (both and all(text.index(mark) < text.index(other) for text in both)):
            marks.add(mark)
            break
    return _joined(marks)


def _is_twice(mark: str, texts: Iterable[str]) -> bool:
    return any(text.count(mark) > 1 for text in texts)


def _joined(marks: set[str]) -> str:
    spaces = {mark for mark in marks if mark.isspace()}
    alternatives = sorted(re.escape(mark) for mark in marks - spaces if mark)
    others = "".join(sorted(space for space in spaces if not space.isascii() and space != "\xa0"))  # \s of RE2 is ASCII
    return "|".join([*[rf"[\s\xa0{others}]"] * bool(spaces), *alternatives])


def number_of(text: str, marks: str = "") -> float:
    """The number in a text without these marks, with a point or a comma.

    Raises:
        ValueError: it is none, or too great for a float32.
    """
    text = re.sub(marks, "", text).strip()
    if not _LOOSE.fullmatch(text) or abs(number := float(text.replace(",", "."))) > _GREATEST:
        raise ValueError(text)
    return number


def _counts_up(numbers: Sequence[float]) -> bool:
    """Whether each is the one before plus 1: numbers of rows."""
    return all(after - before == 1 for before, after in pairwise(numbers))


def _scale(numbers: Sequence[float]) -> tuple[float, float]:
    """Median and spread, which few wild values do not move: the deviation of a bell curve with these quartiles."""
    ordered = sorted(numbers)

    def between(low: float, high: float) -> float:
        return ordered[int(high * (len(ordered) - 1))] - ordered[int(low * (len(ordered) - 1))]

    return median(ordered), between(0.25, 0.75) / 1.35 or between(0.05, 0.95) / 3.3 or pstdev(ordered) or 1.0


def _label(table: Table, columns: dict[str, Column], wanted: str) -> Label:
    fields = dict(zip(table.names, table.columns, strict=True))
    usual = [name for name in fields if _LABEL.fullmatch(name)]
    if wanted or usual:
        name = _named(table, wanted) if wanted else usual[0]
        return label_of(columns[name], fields[name])
    for name in reversed(fields):
        with suppress(UsageError):
            return label_of(columns[name], fields[name])
    raise UsageError(f"{table.files[0]} has no column that can be a label; name one with --label")


def _named(table: Table, wanted: str) -> str:
    """The name of the column that is wanted: by its name in the header or in the model, or by its number."""
    places = [place for place, text in enumerate(table.header) if text.strip() == wanted.strip()]
    if len(places) > 1:
        raise UsageError(f"--label: {table.files[0]} has {len(places)} columns {wanted}; give the number of one: "
                         f"{' or '.join(str(place + 1) for place in places)}")  # fmt: skip
    if places:
        return table.names[places[0]]
    if wanted.isdecimal() and 0 < int(wanted) <= len(table.names):
        return table.names[int(wanted) - 1]
    name = identifier_of(wanted)
    if name not in table.names:
        some = ", ".join(table.names[:MOST_NAMES]) + ", ..." * (len(table.names) > MOST_NAMES)
        hint = suggestion(name, table.names) or f"; the columns are {some}"
        raise UsageError(f"--label: {table.files[0]} has no column {wanted}{hint}")
    return name


def label_of(column: Column, fields: Sequence[str]) -> Label:
    """The label in a column: of two values, of some classes, or a number.

    Raises:
        UsageError: it has one value, too many texts, or a value in too few rows.
    """
    name, numbers = column.name, _numbers(Counter(_filled(fields)))
    empty = {text for text in fields if is_empty(text) and (numbers or text != "none")}  # which may be a class
    filled = [text for text in fields if text not in empty]
    counts = Counter(filled)
    if len(counts) < 2 or column.why == "dates":
        what = f"one value, {_plain(filled[0])}" if len(counts) == 1 else column.why
        raise UsageError(f"--label: there is nothing to predict in column {name}: {what}")
    often = [(word, count, f"{_plain(word)} in {100 * count / len(filled):.3g} % of the rows")
             for word, count in counts.most_common()]  # fmt: skip
    if len(counts) == 2:
        one = _positive(counts)
        rare, count, _ = often[1]
        if len(fields) >= FEWEST_RECORDS and count < FEWEST_OF_TWO:
            raise UsageError(f"--label: column {name} is {_plain(rare)} in {count} of {len(filled)} rows; at least "
                             f"{FEWEST_OF_TWO} are needed, to learn from and to hold out")  # fmt: skip
        about = next(about for word, _, about in often if word == one)
        return Label(Column(name, BINARY, empty=tuple(sorted(empty))), BINARY, (one,), about, "auc 0.5")
    if numbers and not (
        all(map(float.is_integer, numbers.values)) and len(counts) <= min(MOST_NUMBERED_CLASSES, len(filled) / 2)
    ):
        mean, deviation = scale = fmean(numbers.values), pstdev(numbers.values)
        about = f"{mean:.4g} on average, with a standard deviation of {deviation:.4g}"
        described = _column_of_numbers(name, fields, numbers, scale)
        return Label(described, NUMBERS, (), about, f"rmse {deviation:.4g}")
    if len(counts) > min(MOST_CLASSES, len(filled) / 2):
        raise UsageError(f"--label: column {name} has {len(counts)} different texts, too many to be classes")
    _, most, about = often[0]
    classes = Column(name, CLASSES, empty=tuple(sorted(empty)))
    return Label(classes, CLASSES, tuple(sorted(counts)), about, f"accuracy {most / len(filled):.3g}")


def _plain(text: str) -> str:
    return " ".join(text.split())[:LONGEST_WORD]


def _positive(counts: Counter[str]) -> str:
    """The value that counts as 1: the larger number, a yes, or else the rarer one."""
    with suppress(ValueError):
        return max(counts, key=number_of)
    return max(counts, key=lambda word: (word.strip().lower() in _YES, -counts[word], word))
