"""A range of global steps, as --trace-steps has it."""

from __future__ import annotations

from typing import NamedTuple

from psruntime.errors import UsageError

MOST = 100  # steps; a trace of more is too large to look at


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
        if not 0 < found.first < found.last <= found.first + MOST:
            raise UsageError(f"{name} must name 1 to {MOST} global steps, the first from 1, got '{text}'")
        return found
