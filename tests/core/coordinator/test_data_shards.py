"""A job of mode sync whose input is read by data shards: it never comes to a stop, and every batch is in a round.

The danger is at the end of an epoch: a worker waits for a shard that another holds, whose round waits for the worker.
The workers are those of graph/loop, without tensors: what they push and close always arrives.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psruntime.config import JobConfig
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, Join, LeaveKind, Prepared, PsBeat, WorkerBeat
from psruntime.core.members.view import Phase
from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.rounds.round_messages import Action, ActionKind, Applied, Computed, Pushed, Report
from psruntime.core.shards.shard_messages import Position, ShardBatch, Sharding, ShardNews, ShardRequest
from psruntime.errors import ReplacedError, UsageError
from tests.support.selection import examples

SHARDING = Sharding(examples=20, size=6)
BATCH = 2  # examples; so shards of 3, 3, 3 and 1 batches
EPOCHS = 2
WORKERS = 3
SETTLES = 400  # turns of everybody, in which whatever is left of the job must come to its end


@dataclass
class Worker:
    """What round_loop.py and shard_reader.py keep.  drawn: batches that no round has had."""

    index: int
    incarnation: int
    view: int
    seen: int = 0
    drawn: list[ShardBatch] = field(default_factory=list)
    news: list[ShardNews] = field(default_factory=list)
    is_idle: bool = False
    kept: tuple[int, ShardBatch] | None = None  # the first attempt of its round, and the batch
    pushed: bool = False
    number: int = 0
    report: Report | None = None


class Job:
    def __init__(self, **more: Any) -> None:
        self.job = JobConfig(mode="sync", min_workers=WORKERS, epochs=EPOCHS, lease_s=1000, ps_timeout_s=1000, **more)
        self.core = Coordinator(self.job, 0.0)
        self.joined = 0
        self.ps = self.join(Role.PS, 0)
        self.workers: dict[int, Worker] = {}
        self.trained: list[tuple[int, ...]] = []  # (epoch, begin, end, number) of each batch that is in the variables
        self.again = 0
        self.events: list[str] = []
        for index in range(WORKERS):
            self.join(Role.WORKER, index)
        self.fence()
        self.core.report_prepared(0, self.incarnation(0), 1, Prepared(0), 0.0)
        for index in range(WORKERS):
            self.workers[index] = Worker(index, self.incarnation(index), 1)

    def join(self, role: Role, index: int) -> int:
        self.joined += 1
        at = f"127.0.0.1:{self.joined}"
        specs = (VariableSpec("kernel", (4,), "float32"),) if role is Role.WORKER else ()
        answer = self.core.join(Join(role, index, at, at, at, self.job.job_id, variables=specs), self.joined, 0.0)
        assert isinstance(answer, Answer)
        return answer.incarnation

    def incarnation(self, index: int) -> int:
        member = self.core.state.members.holder(Role.WORKER, index)
        assert member
        return member.incarnation

    def fence(self) -> None:
        revision = self.core.state.fence.revision
        self.core.heartbeat(Role.PS, 0, self.ps, PsBeat(revision, self.core.state.view.number), 0.0)

    @property
    def is_over(self) -> bool:
        return self.core.state.phase is not Phase.TRAINING

    def lose(self, index: int) -> None:
        if len(self.workers) > 1 and index in self.workers and not self.is_over:
            del self.workers[index]
            self.core.confirm_lost(self.incarnation(index), 0.0)
            self.look()

    def come_back(self, index: int) -> None:
        if index not in self.workers and not self.is_over:
            incarnation = self.join(Role.WORKER, index)
            self.workers[index] = Worker(index, incarnation, self.core.state.view.number)

    def draw(self, index: int) -> None:
        """The thread that draws ahead: no more than two batches."""
        worker = self.workers.get(index)
        if worker is None or len(worker.drawn) >= 2:
            return
        news, worker.news = tuple(worker.news), []
        answer = self.core.take_shard(ShardRequest(index, worker.incarnation, SHARDING, worker.seen, news), 0.0)
        self.look()
        worker.is_idle = answer.shard is None and not worker.drawn
        if answer.shard is None:
            assert answer.reason
            return
        shard, worker.seen = answer.shard, answer.shard.ticket
        count = -(-(shard.end - shard.begin) // BATCH)
        worker.drawn += [ShardBatch(shard, number) for number in range(count)]
        worker.news.append(ShardNews(shard.ticket, count))

    def action(self, index: int) -> None:
        """The thread that steps: it never waits for a batch once it has a turn."""
        worker = self.workers.get(index)
        if worker is None or self.is_over:
            return
        idle = worker.is_idle and not worker.drawn and (worker.kept is None or worker.pushed)
        starved_since = (worker.kept[0] if worker.kept else 0) if idle else None
        report, worker.report = worker.report, None
        action = self.core.next_action(index, worker.incarnation, worker.view, report, 0.0, starved_since)
        self.look()
        if action.kind is ActionKind.APPLY:
            assert action.closes
            worker.report = Applied(action.closes.round, action.closes.attempt, action.closes.round)
        elif action.kind in (ActionKind.PUSH, ActionKind.COMPUTE):
            self.contribute(worker, action)

    def contribute(self, worker: Worker, action: Action) -> None:
        if worker.kept is None or worker.kept[0] != action.opened:
            if worker.kept and not worker.pushed:  # it came too late for its round
                worker.drawn.insert(0, worker.kept[1])
                worker.kept = None
            if not worker.drawn:
                self.draw(worker.index)
            if not worker.drawn:
                return  # its next turn says so
            worker.kept, worker.pushed = (action.opened, worker.drawn.pop(0)), False
            worker.number += 1
        assert worker.kept
        if action.kind is ActionKind.COMPUTE:
            worker.report = Computed(action.round, action.opened, worker.number, 2.0)
            return
        worker.pushed = True
        batches = (worker.kept[1],)
        worker.report = Pushed(action.round, action.attempt, worker.number, 2.0, action.attempt % 5 == 0, None, batches)

    def look(self) -> None:
        """Takes the record of the rounds, and the events."""
        effects = self.core.take_effects()
        for record in effects.records:
            if record["record"] == "round":
                self.trained += [tuple(batch) for part in record["parts"] for batch in part["shards"]]
        self.events += [event.name for event in effects.events]
        self.again += sum(event.name == "shard_again" for event in effects.events)

    def settle(self) -> None:
        """Everybody goes on, until the job is over."""
        for _ in range(SETTLES):
            if self.is_over:
                return
            for index in list(self.workers):
                self.draw(index)
                self.action(index)
        raise AssertionError(f"the job came to a stop: {self.core.state.sync.rounds.waits_for(self.core.state.chief)}")


EXPECTED = Counter(
    (epoch, *SHARDING.range_of(number), batch)
    for epoch in range(1, EPOCHS + 1)
    for number in range(SHARDING.count)
    for batch in range(1 if number == SHARDING.count - 1 else 3)
)
acts = st.tuples(
    st.sampled_from(["draw", "action", "action", "action", "lose", "come_back"]), st.integers(0, WORKERS - 1)
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(acts, max_size=120), st.sampled_from([0, 0, 1]))
def test_a_job_reads_all_and_ends_whoever_is_slow_or_lost(plan: list[tuple[str, int]], backup_workers: int) -> None:
    job = Job(backup_workers=backup_workers)
    for what, index in plan:
        getattr(job, what)(index)
    job.settle()
    assert job.core.state.phase is Phase.DRAINING
    assert job.core.state.reason.startswith(f"epoch {EPOCHS} of {EPOCHS} is done, at global step ")
    trained = Counter(job.trained)
    assert set(trained) == set(EXPECTED), "every batch of every epoch is in a round"
    if not job.again:
        assert trained == EXPECTED, "and in one only"


def test_a_stopped_worker_gives_its_shard_to_others() -> None:
    config = JobConfig(mode="async", epochs=1, lease_s=1000, ps_timeout_s=1000)
    core = Coordinator(config, 0.0)
    specs = (VariableSpec("kernel", (4,), "float32"),)
    for number, (role, index) in enumerate([(Role.PS, 0), (Role.WORKER, 0), (Role.WORKER, 1)], 1):
        at = f"127.0.0.1:{number}"
        of = specs if role is Role.WORKER else ()
        core.join(Join(role, index, at, at, at, config.job_id, variables=of), number, 0.0)
    waits = core.take_shard(ShardRequest(0, 2, SHARDING), 0.0)
    assert waits.shard is None and waits.reason == "nothing is read in phase PREPARING"
    core.report_prepared(0, 2, 1, Prepared(7, position=Position(1, ((0, 3),), SHARDING)), 0.0)
    held = core.take_shard(ShardRequest(0, 2, SHARDING), 0.0).shard
    assert held and core.take_shard(ShardRequest(1, 3, SHARDING), 0.0).shard is None
    core.heartbeat(Role.WORKER, 0, 2, WorkerBeat(1, stopped=True), 0.0)
    again = core.take_shard(ShardRequest(1, 3, SHARDING), 0.0).shard
    assert again and (again.begin, again.end) == (held.begin, held.end)
    with pytest.raises(UsageError, match=r"context\.shards has 20 examples in shards of 5 here"):
        core.take_shard(ShardRequest(1, 3, Sharding(20, 5)), 0.0)
    core.leave(Role.WORKER, 1, 3, LeaveKind.ASKED, "asked to stop", 0.0)
    with pytest.raises(ReplacedError):
        core.take_shard(ShardRequest(1, 3, SHARDING), 0.0)


def test_a_job_whose_epochs_are_done_drains_at_once() -> None:
    config = JobConfig(epochs=2, lease_s=1000, ps_timeout_s=1000)
    core = Coordinator(config, 0.0)
    specs = (VariableSpec("kernel", (4,), "float32"),)
    core.join(Join(Role.PS, 0, "127.0.0.1:1", "127.0.0.1:1", "a", config.job_id), 1, 0.0)
    core.join(Join(Role.WORKER, 0, "127.0.0.1:2", "127.0.0.1:2", "b", config.job_id, variables=specs), 2, 0.0)
    core.report_prepared(0, 2, 1, Prepared(40, position=Position(3, (), SHARDING)), 0.0)
    assert core.state.phase is Phase.DRAINING
    assert core.state.reason == (
        "epoch 2 of 2 (--epochs) was done already, at global step 40: nothing to train; raise --epochs to go on"
    )
