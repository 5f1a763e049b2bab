"""The jobs that are simulated, with their faults: what follows from a seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from psruntime.config.schedule import BOUNDED, SYNC

KINDS = ("kill", "end", "reset", "pause", "cut", "slow", "loss", "disk")
DRAWN = [kind for kind, weight in zip(KINDS, (3, 1, 3, 2, 1, 2, 1, 1), strict=True) for _ in range(weight)]


@dataclass(frozen=True)
class Fault:
    """What happens to a process at this virtual time, for so long where it ends by itself."""

    at_s: float
    kind: str  # of KINDS
    name: str = ""
    other: str = ""
    for_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.at_s:.3f} {self.kind} {self.name} {self.other} {self.for_s:.3f}"


@dataclass(frozen=True)
class Schedule:
    """A job and its faults, by virtual time.  compute_s: as in Runner.

    rounds: the global step that ends it.  backup_workers: in mode sync.  pipeline, bound: in the others.
    """

    seed: int
    mode: str
    num_ps: int
    workers: int
    min_workers: int
    rounds: int
    backup_workers: int
    compute_s: float
    faults: tuple[Fault, ...]
    in_preparations: tuple[Fault, ...] = ()  # one in each, so long after its begin; "chief" stands for its name
    pipeline: int = 1
    bound: int | None = None


def schedule_of(seed: int, mode: str = SYNC) -> Schedule:
    """The schedule that follows from a seed."""
    draw = Random(seed)
    num_ps, workers = draw.choice([1, 2, 2]), draw.choice([1, 2, 2, 3])
    backup = int(workers > 1 and draw.random() < 0.2) * (mode == SYNC)
    names = [*(f"ps{index}" for index in range(num_ps)), *(f"worker{index}" for index in range(workers))]
    compute_s, lasts_s = draw.choice([(0.004, 1.6), (0.1, 8.0)])
    faults = []
    for _ in range(draw.choice([0, 1, 2, 3, 4, 6, 8])):
        at_s, kind = draw.uniform(0.1, lasts_s), draw.choice(DRAWN)
        name, other = draw.choice(names), draw.choice(names)
        for_s = draw.choice([0.01, 0.05, 0.3, 1.0, 3.0, 6.0]) * draw.uniform(0.5, 1.5)
        if kind == "cut" and name == other:
            continue
        faults.append(Fault(at_s, kind, name, other, for_s))
    hits = [
        Fault(draw.uniform(0.0, 0.03), draw.choice(DRAWN), draw.choice(["chief", "chief", *names]), draw.choice(names),
              draw.choice([0.01, 0.3, 3.0, 9.0]))
        for _ in range(draw.choice([0, 0, 1, 2]))
    ]  # fmt: skip
    minimum = max(1 + backup, draw.choice([1, workers]))
    rounds = draw.choice([6, 12, 25, 50])
    faults.sort(key=lambda fault: fault.at_s)
    schedule = Schedule(seed, mode, num_ps, workers, minimum, rounds, backup, compute_s, tuple(faults), tuple(hits))
    if mode == SYNC:
        return schedule
    bound = draw.choice([0, 1, 3]) if mode == BOUNDED else None
    return replace(schedule, rounds=rounds * workers, pipeline=draw.choice([1, 1, 2, 3]), bound=bound)
