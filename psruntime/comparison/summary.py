"""The numbers of one training, from its record."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from psruntime.core.accounting.update_outcome import APPLIED_NAME, CONTRIBUTED
from psruntime.errors import UsageError
from psruntime.observe.records import Record, standing

POINTS = 60  # of a curve, at most
_HELD_OUT = re.compile(r"held out, at global step \d+: (.+)")
_METRIC = re.compile(r"(\S+) (\S+?)(?:, |$)")

Point = tuple[float, float]


@dataclass(frozen=True)
class Training:
    """The numbers of one training.

    steps: global steps, updates or in mode sync rounds.  seconds: from the first update to the last, of all workers.
    examples: in the updates that were not undone.  dropped: updates that were refused, on one bucket at least.
    loss_by_step, loss_by_time: points (global step or second, median loss of the updates about there).
    staleness: versions -> share of the updates.  waited: worker index -> share of its time that it waited for others.
    held_out: metric -> its value at the end.
    """

    name: str
    steps: int
    seconds: float
    examples: int
    dropped: int
    loss_by_step: list[Point]
    loss_by_time: list[Point]
    staleness: dict[int, float]
    waited: dict[int, float]
    held_out: Mapping[str, float]

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.seconds if self.seconds > 0 else 0.0

    @property
    def mean_staleness(self) -> float:
        return sum(staleness * share for staleness, share in self.staleness.items())


def training_of(name: str, records: Sequence[Record], held_out: Mapping[str, float]) -> Training:
    """The numbers of a training.

    Raises:
        UsageError: nothing was trained.
    """
    stands = standing(records)
    if not stands:
        raise UsageError(f"the record of '{name}' has no update; give more --train-steps")
    began_s, ended_s = min(r.time for r in records), max(r.time for r in records)
    rounds = {r.global_step for r in stands if r.outcome == CONTRIBUTED}
    stale = Counter(r.staleness for r in stands if r.staleness is not None)
    waited: dict[int, float] = {}
    for record in sorted(records, key=lambda r: r.time):  # before its first update a worker waits for the job to start
        waited[record.worker] = waited[record.worker] + record.waited_s if record.worker in waited else 0.0
    seconds = ended_s - began_s
    return Training(
        name=name,
        steps=len(rounds) + sum(r.outcome != CONTRIBUTED for r in stands),
        seconds=seconds,
        examples=sum(r.examples for r in stands),
        dropped=sum(r.outcome not in (APPLIED_NAME, CONTRIBUTED) for r in records),
        loss_by_step=curve((r.global_step, r.loss) for r in stands if r.loss is not None),
        loss_by_time=curve((r.time - began_s, r.loss) for r in stands if r.loss is not None),
        staleness={staleness: count / stale.total() for staleness, count in sorted(stale.items())},
        waited={worker: min(1.0, s / seconds) if seconds > 0 else 0.0 for worker, s in sorted(waited.items())},
        held_out=held_out,
    )


def curve(points: Iterable[Point]) -> list[Point]:
    """At most POINTS points, each the median of as many of the given ones, in their order along the first axis.

    The mean would show a single very late update, whose loss is from long before, as a peak.
    """
    ordered = sorted(points)
    each = -(-len(ordered) // POINTS) or 1
    parts = [ordered[i : i + each] for i in range(0, len(ordered), each)]
    return [(median(x for x, _ in part), median(y for _, y in part)) for part in parts]


def held_out_of(log: str) -> dict[str, float]:
    """The metrics that a worker logged at the end; none if it measured nothing."""
    found = _HELD_OUT.findall(log)
    return {name: float(value) for name, value in _METRIC.findall(found[-1])} if found else {}
