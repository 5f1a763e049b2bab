"""Held-out metrics: how users name one by which checkpoints are compared, and how the values are told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from psruntime.errors import UsageError, some

MOST_TOLD = 20  # values in a line for people; a metric may have several


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


def text_of(global_step: int, values: Mapping[str, float]) -> str:
    """The values at a global step, in a line for people."""
    texts = [f"{name} {value:.4f}" for name, value in values.items()]
    return f"held out, at global step {global_step}: {some(texts, MOST_TOLD)}"
