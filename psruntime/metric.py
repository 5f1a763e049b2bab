"""A held-out metric by which checkpoints are compared, as users name it: NAME, min:NAME or max:NAME."""

from __future__ import annotations

import math
from typing import NamedTuple

from psruntime.errors import UsageError


class Metric(NamedTuple):
    """greatest: whether the greatest value is best; else the least."""

    name: str
    greatest: bool

    @classmethod
    def of(cls, setting: str, text: str) -> Metric:
        """Of a loss the least is best, of any other the greatest, unless the text says which.

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
