"""What is kept beside a checkpoint, so that it outlives the ps: the counters of every bucket at that moment.

It is a file of JSON with the checkpoint's name and the ending SUFFIX.  A checkpoint without one, as of stock
TensorFlow, begins the counters anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from psruntime.core.accounting.accounts import APPLIED, LEDGER_SIZE, is_balanced, of_any_age
from psruntime.core.plan.identity import ModelIdentity
from psruntime.core.shards.shard_messages import Position

SUFFIX = ".state.json"

Counts = tuple[int, int]  # pushes of one worker: accepted, received


@dataclass(frozen=True)
class BucketCounters:
    """The version and ledger of one bucket (core/accounting/accounts.py), and the ps that it was on; -1: not known."""

    version: int
    ledger: tuple[int, ...]
    ps: int


@dataclass(frozen=True)
class SavedState:
    """The counters of a job when its variables were copied.

    buckets: by name.  counts: ps -> worker -> what every bucket of that ps has at least.
    stamp: a random number that the copy was known by on the ps; 0: not known.  position: how far the data shards were
    read when that was copied; None: there are none.  identity: of the model; None: not known.
    """

    global_step: int
    buckets: Mapping[str, BucketCounters] = field(default_factory=dict)
    counts: Mapping[int, Mapping[int, Counts]] = field(default_factory=dict)
    stamp: int = 0
    position: Position | None = None
    identity: ModelIdentity | None = None

    @property
    def spread(self) -> int:
        """By how many updates the buckets differ: 0 in mode sync, where all hold the same rounds."""
        applied = [counters.ledger[APPLIED] for counters in self.buckets.values()]
        return max(applied, default=0) - min(applied, default=0)

    def text(self) -> str:
        data: dict[str, Any] = {
            "global_step": self.global_step,
            "spread": self.spread,
            "stamp": self.stamp,
            "buckets": {
                name: {"version": b.version, "ledger": list(b.ledger), "ps": b.ps} for name, b in self.buckets.items()
            },
            "counts": {str(ps): {str(w): list(c) for w, c in of_ps.items()} for ps, of_ps in self.counts.items()},
        }
        if self.position is not None:
            data["position"] = self.position.data()
        if self.identity is not None:
            data["model"] = self.identity.data()
        return json.dumps(data, indent=1) + "\n"

    @classmethod
    def of_text(cls, text: str) -> SavedState:
        """Raises ValueError: the text is not one of `text`."""
        try:
            data = json.loads(text)
            return cls(
                int(data["global_step"]),
                {name: _counters(name, of_bucket) for name, of_bucket in data["buckets"].items()},
                {
                    int(ps): {int(worker): (int(low), int(high)) for worker, (low, high) in of_ps.items()}
                    for ps, of_ps in data["counts"].items()
                },
                int(data.get("stamp", 0)),
                Position.of_data(data["position"]) if "position" in data else None,
                ModelIdentity.of_data(data["model"]) if "model" in data else None,
            )
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"it lacks or has another {error}") from error


def _counters(name: str, data: Any) -> BucketCounters:
    ledger = of_any_age([int(n) for n in data["ledger"]])
    if len(ledger) != LEDGER_SIZE or not is_balanced(ledger):
        raise ValueError(f"the ledger of bucket {name} does not balance: {ledger}")
    return BucketCounters(int(data["version"]), ledger, int(data.get("ps", -1)))
