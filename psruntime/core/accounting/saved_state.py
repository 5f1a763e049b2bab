"""What is kept beside a checkpoint: the counters of the job, so that they outlive the ps; and which rows it has.

Each is a file of JSON with the checkpoint's name and an ending.  A checkpoint without SUFFIX, as of stock TensorFlow,
begins the counters anew.  One with ROWS_SUFFIX has only the rows that were touched: those of a bucket are saved in
portions, one after the other, for each a tensor of the rows, as they are numbered in the bucket, and one of each
variable that has them.  Those of a table are one range.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate
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


ROWS_SUFFIX = ".rows.json"


@dataclass(frozen=True)
class TableRange:
    """The touched rows [begin, end) are of table `name`; of a dynamic table there may be none.

    Row `offset` of the bucket is row `start` of the table, the next one row `start + stride`.
    """

    name: str
    begin: int
    end: int
    start: int
    offset: int
    stride: int


@dataclass(frozen=True)
class TouchedPart:
    """The touched rows of some variables of a bucket.

    kind: which variables of a bucket these are.  prefix: of the names of their tensors.  portions: rows in each.
    elapsed: what the bucket's clock has counted since all rows were saved.
    """

    kind: str
    prefix: str
    portions: tuple[int, ...]
    elapsed: int
    tables: tuple[TableRange, ...]

    def by_portion(self) -> Iterator[list[tuple[int, TableRange]]]:
        """For each portion (first row in it, table) of the tables that have rows there, in their order."""
        begin = 0
        for end in accumulate(self.portions):
            yield [(max(t.begin, begin) - begin, t) for t in self.tables if max(t.begin, begin) < min(t.end, end)]
            begin = end


@dataclass(frozen=True)
class RowChanges:
    """All rows that were touched since the copy of this stamp, which was saved whole."""

    since: int
    parts: tuple[TouchedPart, ...]

    @property
    def rows(self) -> int:
        """How many, in all variables that are kept together."""
        return sum(sum(part.portions) for part in self.parts)

    def heights(self, name: str) -> dict[str, int]:
        """Rows of each tensor of this name, by its whole name."""
        return {
            f"{part.prefix}/{number}/{name}": rows for part in self.parts for number, rows in enumerate(part.portions)
        }

    def text(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def of_text(cls, text: str) -> RowChanges:
        """Raises ValueError: the text is not one of `text`."""
        try:
            data = json.loads(text)
            return cls(
                int(data["since"]),
                tuple(
                    TouchedPart(
                        str(part["kind"]),
                        str(part["prefix"]),
                        tuple(int(rows) for rows in part["portions"]),
                        int(part["elapsed"]),
                        tuple(TableRange(**table) for table in part["tables"]),
                    )
                    for part in data["parts"]
                ),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it lacks or has another {error}") from error
