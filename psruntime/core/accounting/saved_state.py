"""What is kept beside a checkpoint, so that it outlives the ps: the books of every bucket at that moment.

It is a file of JSON with the checkpoint's name and the ending SUFFIX.  A checkpoint without one, as of stock
TensorFlow, begins the books anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from psruntime.core.accounting.ledger import APPLIED, LEDGER_SIZE, is_balanced

SUFFIX = ".state.json"

Counts = tuple[int, int]  # pushes of one worker: accepted, received


@dataclass(frozen=True)
class BucketBooks:
    """The version and ledger of one bucket (core/accounting/ledger.py), and the ps that it was on; -1: not known."""

    version: int
    ledger: tuple[int, ...]
    ps: int


@dataclass(frozen=True)
class SavedState:
    """The books of a job when its variables were copied.

    buckets: by name.  counts: ps -> worker -> what every bucket of that ps has at least.
    """

    global_step: int
    buckets: Mapping[str, BucketBooks] = field(default_factory=dict)
    counts: Mapping[int, Mapping[int, Counts]] = field(default_factory=dict)

    @property
    def spread(self) -> int:
        """By how many updates the buckets differ: 0 in mode sync, where all hold the same rounds."""
        applied = [books.ledger[APPLIED] for books in self.buckets.values()]
        return max(applied, default=0) - min(applied, default=0)

    def text(self) -> str:
        data = {
            "global_step": self.global_step,
            "spread": self.spread,
            "buckets": {
                name: {"version": b.version, "ledger": list(b.ledger), "ps": b.ps} for name, b in self.buckets.items()
            },
            "counts": {str(ps): {str(w): list(c) for w, c in of_ps.items()} for ps, of_ps in self.counts.items()},
        }
        return json.dumps(data, indent=1) + "\n"

    @classmethod
    def of_text(cls, text: str) -> SavedState:
        """Raises ValueError: the text is not one of `text`."""
        try:
            data = json.loads(text)
            return cls(
                int(data["global_step"]),
                {name: _books(name, of_bucket) for name, of_bucket in data["buckets"].items()},
                {
                    int(ps): {int(worker): (int(low), int(high)) for worker, (low, high) in of_ps.items()}
                    for ps, of_ps in data["counts"].items()
                },
            )
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"it lacks or has another {error}") from error


def _books(name: str, data: Any) -> BucketBooks:
    ledger = tuple(int(n) for n in data["ledger"])
    if len(ledger) != LEDGER_SIZE or not is_balanced(ledger):
        raise ValueError(f"the ledger of bucket {name} does not balance: {ledger}")
    return BucketBooks(int(data["version"]), ledger, int(data.get("ps", -1)))
