"""Types of the fields of messages: what a received value has to be.

A callable in the annotation of a field is a check.  It takes the field's name and the value, and returns the value or
raises a UsageError that begins with the name.  An int without one is from 0, below 2^31 or COUNT_LIMIT by its field of
the proto; a float without one is finite and from 0; a str without one is any text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from psruntime.errors import UsageError

COUNT_LIMIT = 2**53  # what a float, so also a JSON reader, still counts exactly
INDEX_LIMIT = 2**31
INCARNATION_LIMIT = 2**63
BYTES_LIMIT = 2**63  # of a sum over the life of a process: at 12.5 GB/s it passes COUNT_LIMIT within 9 days
ADDRESS_CHARS = 256
NAME_CHARS = 1024
TEXT_CHARS = 4096

T = TypeVar("T")


@dataclass(frozen=True)
class Whole:
    """A whole number with least <= value < limit."""

    least: int = 0
    limit: int = COUNT_LIMIT

    def __call__(self, name: str, value: int) -> int:
        if not self.least <= value < self.limit:
            raise UsageError(f"{name} must be from {self.least} to {self.limit - 1}, got {value}")
        return value


@dataclass(frozen=True)
class Chars:
    """A text of `least` to `limit` characters."""

    limit: int
    least: int = 0

    def __call__(self, name: str, value: str) -> str:
        if not self.least <= len(value) <= self.limit:
            raise UsageError(f"{name} must have {self.least} to {self.limit} characters, got {len(value)}")
        return value


@dataclass(frozen=True)
class Line(Chars):
    """A text for people, who read it in a terminal: one line, and nothing but what can be seen."""

    limit: int = TEXT_CHARS

    def __call__(self, name: str, value: str) -> str:
        super().__call__(name, value)
        return visible(value)


@dataclass(frozen=True)
class Exact(Line):
    """A name by which something is found: it is refused where a Line would be changed."""

    def __call__(self, name: str, value: str) -> str:
        if super().__call__(name, value) != value:
            raise UsageError(f"{name} must have visible characters only, got {value!a:.100}")
        return value


@dataclass(frozen=True)
class Different:
    """Entries without two of the same name.  name_of: of an entry."""

    name_of: Callable[[Any], Hashable]

    def __call__(self, name: str, values: tuple[T, ...]) -> tuple[T, ...]:
        if len({self.name_of(value) for value in values}) < len(values):
            raise UsageError(f"{name} must differ in name")
        return values


@dataclass(frozen=True)
class AtMost:
    """The largest number of entries, which is checked before any of them is."""

    entries: int


@dataclass(frozen=True)
class Sent:
    """What is sent of a value."""

    of: Callable[[Any], Any]


LOCAL = "local"  # a field that is not sent by each message of its class; received, it has its default
REMEMBERED = "remembered"  # a field whose entries are read once where many messages have the same


def amount(name: str, value: float) -> float:
    """A finite float from 0."""
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(f"{name} must be a finite number from 0, got {value:g}")
    return value


def share(name: str, value: float) -> float:
    """A part of a whole, 0 to 1."""
    if not 0 <= value <= 1:
        raise UsageError(f"{name} must be from 0 to 1, got {value:g}")
    return value


def anything(_name: str, value: T) -> T:
    """No check, also where there is one by default."""
    return value


def address(name: str, value: str) -> str:
    """A text that can be `host:port`; whether it is one is checked where it is used."""
    Chars(ADDRESS_CHARS)(name, value)
    if not value.isascii() or not value.isprintable() or " " in value:
        raise UsageError(f"{name} must have visible ASCII characters only")
    return value


def visible(text: str) -> str:
    """A text as a terminal shows it and does nothing else: a blank stands for each other character."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def cut(value: str, limit: int = TEXT_CHARS) -> str:
    """A text made fit to be sent: cut at the limit, lone surrogates (as in file names) replaced."""
    return value[:limit].encode("utf-8", "replace").decode("utf-8")


Positive = Annotated[int, Whole(1)]
Incarnation = Annotated[int, Whole(1, INCARNATION_LIMIT)]
IncarnationOrZero = Annotated[int, Whole(0, INCARNATION_LIMIT)]
AnyFloat = Annotated[float, anything]
Address = Annotated[str, address]
Name = Annotated[str, Line(NAME_CHARS, least=1)]
ExactName = Annotated[str, Exact(NAME_CHARS, least=1)]
Tag = Annotated[str, Chars(10)]  # as membership.tag_of makes it
Words = Annotated[str, Line(), Sent(cut)]
