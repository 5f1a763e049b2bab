"""How stale an update can be with a pipeline: workers that keep to the rule of the gate, in orders drawn at random.

A worker begins steps in order, several at a time; each pulls and pushes whenever it likes; they are completed in order.
What a worker knows of the floor may be old.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from psruntime.config import JobConfig
from psruntime.core.clocks.clocks import within
from psruntime.core.clocks.pace import Pace
from psruntime.core.members.membership import JudgedClock

WORKERS = 3
MOVES = 4000


@dataclass
class Step:
    pulled_at: int | None = None  # the version
    pushed: bool = False


@dataclass
class Worker:
    clock: int = 0
    floor: int = 0  # as it knows it
    under_way: list[Step] = field(default_factory=list)  # in order


class Simulation:
    def __init__(self, bound: int, pipeline: int, seed: int) -> None:
        self.bound, self.pipeline = bound, pipeline
        self.random = random.Random(seed)
        self.workers = [Worker() for _ in range(WORKERS)]
        self.version = self.stalest = self.furthest = 0

    def run(self) -> None:
        favoured = 0
        for move in range(MOVES):
            if move % 40 == 0:  # the straggler changes: at random all are equally fast, and nothing is stale
                favoured = self.random.randrange(WORKERS)
            slow = self.random.random() < 0.1
            self.move(self.workers[favoured if not slow else self.random.randrange(WORKERS)])

    def move(self, worker: Worker) -> None:
        floor = min(w.clock for w in self.workers)
        kind = self.random.randrange(5)
        if kind == 0:
            worker.floor = self.random.randint(worker.floor, floor)
        elif kind == 1:
            ahead = worker.clock + len(worker.under_way)
            if len(worker.under_way) < self.pipeline and within(self.bound, ahead, worker.floor):
                self.furthest = max(self.furthest, ahead - floor)
                worker.under_way.append(Step())
        elif kind == 2 and worker.under_way and worker.under_way[0].pushed:
            worker.under_way.pop(0)
            worker.clock += 1
        elif worker.under_way:
            self.advance(self.random.choice(worker.under_way))

    def advance(self, step: Step) -> None:
        if step.pulled_at is None:
            step.pulled_at = self.version
        elif not step.pushed:
            step.pushed = True
            self.stalest = max(self.stalest, self.version - step.pulled_at)
            self.version += 1


@pytest.mark.parametrize("bound", [0, 1, 2, 4])
@pytest.mark.parametrize("pipeline", [1, 2, 3])
def test_nothing_is_staler_than_the_ps_let_pass(bound: int, pipeline: int) -> None:
    limit = Pace(JobConfig(mode="bounded", bound=bound, pipeline=pipeline), JudgedClock(0.0)).max_staleness(WORKERS)
    assert limit == (2 * bound + 1) * (WORKERS - 1) + 2 * min(pipeline - 1, bound)
    stalest = 0
    for seed in range(40):
        simulation = Simulation(bound, pipeline, seed)
        simulation.run()
        assert simulation.stalest <= limit
        assert simulation.furthest <= bound
        stalest = max(stalest, simulation.stalest)
    assert stalest >= limit - 1 - 2 * bound, "the orders were too tame to tell anything"
