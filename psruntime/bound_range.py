"""The bound of mode bounded as users give it: a number, or `auto:LOW-HIGH`, from which the coordinator chooses."""

from __future__ import annotations

import re
from dataclasses import dataclass

from psruntime.errors import UsageError

AUTO = "auto"
_RANGE = re.compile(rf"{AUTO}:([0-9]{{1,15}})-([0-9]{{1,15}})")


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
