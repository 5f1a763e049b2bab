"""What the texts of settings mean that say more than a number or a word: ranges, rules, metrics, names, paths."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from typing import NamedTuple

from psruntime.errors import UsageError

AUTO = "auto"
_RANGE = re.compile(rf"{AUTO}:([0-9]{{1,15}})-([0-9]{{1,15}})")
MOST_TRACED = 100  # steps; a trace of more is too large to look at
INVERSE, EXPONENTIAL = "inverse", "exponential"
FORMS = f"{INVERSE} or {EXPONENTIAL}:RATE"


@dataclass(frozen=True)
class BoundRange:
    """From `least`, with which a job begins, to `most`; in steps."""

    least: int
    most: int

    @classmethod
    def of(cls, text: str) -> BoundRange:
        """Raises UsageError if the text is no range."""
        found = _RANGE.fullmatch(text.strip())
        if found is None:
            raise UsageError(f"bound must be a whole number or {AUTO}:LOW-HIGH, as {AUTO}:1-8, got '{text[:80]}'")
        least, most = int(found[1]), int(found[2])
        if least >= most:
            raise UsageError(f"bound {AUTO}:LOW-HIGH needs a LOW that is below HIGH, got '{text.strip()}'")
        return cls(least, most)

    def __str__(self) -> str:
        return f"{AUTO}:{self.least}-{self.most}"

    def nearest(self, bound: int) -> int:
        """The bound of the range that is nearest to this one."""
        return min(max(bound, self.least), self.most)


def bound_of(text: str) -> int | str:
    """What --bound says: a number, or a range as text.

    Raises:
        UsageError: it is neither.
    """
    if text.isascii() and text.isdecimal() and len(text) <= 15:
        return int(text)
    return str(BoundRange.of(text))


class StepRange(NamedTuple):
    """From global step `first`, from 1, to before `last`; empty if they are equal."""

    first: int
    last: int

    @classmethod
    def of(cls, name: str, text: str) -> StepRange:
        """Of FIRST:LAST, or an empty text.

        Raises:
            UsageError: it is not written so, or has too many steps or none; `name` is its setting.
        """
        if not text:
            return cls(0, 0)
        words = text.split(":")
        if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
            raise UsageError(f"{name} must be FIRST:LAST, two global steps as in 100:110, got '{text}'")
        found = cls(*map(int, words))
        if not 0 < found.first < found.last <= found.first + MOST_TRACED:
            raise UsageError(f"{name} must name 1 to {MOST_TRACED} global steps, the first from 1, got '{text}'")
        return found


@dataclass(frozen=True)
class StalenessLr:
    """The rule of --staleness-lr: by how much the learning rate of an update is lowered, by that update's staleness.

    Staleness is counted in versions: how many other updates the bucket has taken between the pull and this one.  One
    worker alone has 0; with W workers of the same pace, of P steps under way each (--pipeline), it is W x P - 1 on the
    average.

        inverse             weight = 1 / staleness if staleness > 0, else 1
        exponential:RATE    weight = exp(-RATE x staleness)

    An update is made with weight x learning rate.  The first is the rule of Zhang, Gupta, Lian and Liu, Staleness-aware
    Async-SGD for distributed deep learning, IJCAI 2016 (alpha / tau if tau > 0, else alpha), where tau counts as
    staleness does here; so an update that is one version late keeps its rate, and with 2 workers of the same pace
    hardly one is lowered.  The second lowers from the first version on.

    Delay compensation (Zheng et al., ICML 2017) is not built: it needs the parameters that a worker had pulled, a model
    of each worker on the ps or twice the bytes of a push.

    decay: RATE, per version; None: the rule is `inverse`.
    """

    decay: float | None = None

    @classmethod
    def of(cls, text: str) -> StalenessLr | None:
        """The rule in `text`; None if it is empty.

        Raises:
            UsageError: it is no rule.
        """
        if not text:
            return None
        name, colon, rate = text.partition(":")
        if name == INVERSE and not colon:
            return cls()
        if name != EXPONENTIAL or not colon:
            raise UsageError(f"staleness_lr must be {FORMS}, got '{text}'")
        try:
            decay = float(rate)
        except ValueError:
            decay = math.nan
        if not 0 < decay < math.inf:
            raise UsageError(f"staleness_lr {EXPONENTIAL}:RATE needs a number above 0, per version, got '{rate}'")
        return cls(decay)

    def weight(self, staleness: int) -> float:
        """What the learning rate is multiplied by, from 0 to 1."""
        if self.decay is None:
            return 1.0 / max(staleness, 1)
        return math.exp(-self.decay * max(staleness, 0))


class Metric(NamedTuple):
    """One by which checkpoints are compared.  greatest: whether the greatest value is best; else the least."""

    name: str
    greatest: bool

    @classmethod
    def of(cls, setting: str, text: str) -> Metric:
        """NAME, min:NAME or max:NAME; by default of a loss the least is best, of any other the greatest.

        Raises:
            UsageError: it says neither min nor max, or no name.
        """
        which, colon, name = text.partition(":")
        if colon and (which not in ("min", "max") or not name):
            raise UsageError(f"{setting} must be NAME, min:NAME or max:NAME, got '{text}'")
        return cls(name, which == "max") if colon else cls(text, text != "loss")

    def is_better(self, value: float, best: float | None) -> bool:
        """Whether the value is better than the best before; None: there is none.  One that is not finite never is."""
        if not math.isfinite(value):
            return False
        return best is None or (value > best if self.greatest else value < best)


def pattern_of(text: str) -> re.Pattern[str]:
    """Of names of variables, which it matches from their beginning; an empty text matches all.

    Raises:
        UsageError: it is no regular expression.
    """
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"warm_start_vars must be a regular expression, got '{text}': {error}") from error


def earlier_names(text: str) -> dict[str, str]:
    """Of NEW=OLD,...: the name of a variable of this model -> that in the checkpoint.

    Raises:
        UsageError: it is of another form, or says one name twice.
    """
    names: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        new, equals, old = (word.strip() for word in pair.partition("="))
        if not (new and equals and old):
            raise UsageError(f"warm_start_names must be NEW=OLD,..., names of variables, got '{pair}'")
        if new in names:
            raise UsageError(f"warm_start_names says {new} twice")
        names[new] = old
    return names


def local_path(path: str) -> str:
    """The path of a `file:` URL, as TensorFlow reads it: without a host, and `%20` is no space; else `path` itself.

    Raises:
        UsageError: the URL names another machine, or no path from the root.
    """
    if not path.startswith("file:"):
        return path
    found = re.fullmatch(r"file:(?://(?:localhost)?)?(/.*)", path)
    if not found or (path.startswith("file://") and found[1].startswith("//")):
        raise UsageError(f"{path} is no path of this machine; give the path itself, as /folder/name")
    return found[1]


def whole_path(folder: str) -> str:
    """The folder's path from the root, in the form that everybody compares; one of `gs://...` keeps its scheme.

    Raises:
        UsageError: as `local_path`.
    """
    folder = local_path(folder)
    scheme, separator, rest = folder.partition("://")
    return f"{scheme}://{os.path.normpath(rest)}" if separator else os.path.abspath(folder)
