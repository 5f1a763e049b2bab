"""The variables of the simulated ps, and the rules by which the product's graph changes them.

A twin in Python of graph/push/round_sum.py and graph/push/guard.py, by the same core/rounds/contribution.py.  What a
run does on a bucket is a critical section of two halves: a run of which an operation fails in between leaves the first.
Each bucket is a section of its own.

The variable of a bucket is a number, and what changes it is not linear in it: after a round it is a hash of what it
was and of the sum of the gradients.  So each member counts once, of the right round, or the audit sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from psruntime.core.accounting.accounts import (
    APPLIED,
    FENCED,
    LEDGER_SIZE,
    PENDING,
    RECEIVED,
    REPEATED,
    ROLLED_BACK,
    STALE,
    VOID,
    stats_of,
)
from psruntime.core.members.messages import PsStats
from psruntime.core.recovery.recovery import Contents
from psruntime.core.rounds.contribution import BucketOutcome, SectionState
from psruntime.graph.buckets.bucket_store import NO_LIMIT, RESTORE_LEAP
from tests.simulation.kernel import Process

PRIME = 2_147_483_647
BATCHES = 1_000_000  # from one process's first batch to the next one's: more than one draws
SECTION_S = 0.002  # between the halves of a critical section: so long that many are cut off in between


def after_round(value: int, gradients: int) -> int:
    """The variable after a round whose members' gradients have this sum."""
    return (value * 48_271 + gradients) % PRIME


def gradient_of(worker: int, batch: int, pulled: tuple[int, ...], bucket: int) -> int:
    """The gradient of a batch at the values that were pulled of all buckets."""
    return hash((worker, batch, pulled, bucket)) % PRIME


class Header(NamedTuple):
    """What a run is fed, see graph/push/step_messages.py."""

    worker: int
    incarnation: int
    sequence: int
    members: int
    factor: float
    global_step: int
    origin: int


class Gradient(NamedTuple):
    """A contribution."""

    worker: int
    incarnation: int
    batch: int
    value: int
    pulled: tuple[int, ...] = ()  # the values of all buckets that it is of; in mode sync they follow from the round


@dataclass
class Pushed:
    """The row of a worker: whose pushes these are, and which were accepted."""

    origin: int = 0
    accepted: frozenset[int] = frozenset()

    def of(self, header: Header) -> frozenset[int]:
        """Which pushes of this origin were accepted."""
        return self.accepted if self.origin == header.origin else frozenset()


@dataclass
class Bucket:
    """A bucket on its ps; number 0 of ps 0 counts the global step as the others have their values."""

    value: int
    steps: int = 0  # rounds or updates in the value
    version: int = 0  # of the modes without rounds
    ledger: list[int] = field(default_factory=lambda: [0] * LEDGER_SIZE)
    pushed: dict[int, Pushed] = field(default_factory=dict)
    state: SectionState = field(default_factory=lambda: SectionState(0, 0, 0, 0))
    sum: list[Gradient] = field(default_factory=list)
    waiting: list[Callable[[], None]] = field(default_factory=list)
    is_locked: bool = False
    members: dict[int, int] = field(default_factory=dict)  # of each round in the value: its contributions

    def move(self, count: int, column: int, to: int) -> None:
        self.ledger[column] -= count
        self.ledger[to] += count


class Run:
    """A run of a session on several ps: its part on one ends when that ps learns that it is cancelled."""

    def __init__(self) -> None:
        self._cancelled: set[int] = set()

    def cancel(self, ps: int) -> None:
        self._cancelled.add(ps)

    def is_cancelled(self, ps: int) -> bool:
        return ps in self._cancelled


class Servers:
    """The TensorFlow server of one ps process, with its buckets, by number.

    audit: learns of each round or update that is applied, and of each update that is refused.
    """

    def __init__(self, process: Process, index: int, buckets: list[int], audit: Any) -> None:
        self.process, self.index, self.numbers = process, index, buckets
        self.admitted: dict[int, int] = {}
        self.max_staleness = NO_LIMIT
        self.contents = Contents.FRESH
        self.buckets = {number: Bucket(0) for number in buckets}
        self.runs: dict[int, list[Run]] = {}  # by worker: what its sessions have under way
        self._audit = audit

    def is_fenced(self, header: Header) -> bool:
        return self.admitted.get(header.worker) != header.incarnation

    # Critical sections.

    def _enter(self, bucket: Bucket, run: Run, body: Callable[[Callable[[], None]], None]) -> None:
        """Runs `body(leave)` when the bucket is free, unless the run is cancelled by then."""

        def begin() -> None:
            if run.is_cancelled(self.index):
                self._leave(bucket)
            else:
                body(lambda: self._leave(bucket))

        if bucket.is_locked:
            bucket.waiting.append(begin)
        else:
            bucket.is_locked = True
            begin()

    def _leave(self, bucket: Bucket) -> None:
        """The next that waits has the lock now, if there is one."""
        if bucket.waiting:
            self.process.after(0.0, bucket.waiting.pop(0))
        else:
            bucket.is_locked = False

    def _second_half(self, run: Run, act: Callable[[], None], leave: Callable[[], None]) -> None:
        def half() -> None:
            if not run.is_cancelled(self.index):  # else the variables stay as they are, and the mutex is open again
                act()
            leave()

        self.process.after(SECTION_S, half)

    def close(self, number: int, header: Header | None, run: Run, done: Callable[[SectionState], None]) -> None:
        """As round_sum.close; without a header nothing is closed."""
        bucket = self.buckets[number]
        if header is None:
            done(bucket.state)
            return

        def section(leave: Callable[[], None]) -> None:
            state, attempt = bucket.state, header.sequence
            is_complete = state.is_complete(attempt, header.members)
            if state.began(attempt) or self.is_fenced(header) or not is_complete:
                leave()
                done(state)
                return
            bucket.state = state._replace(attempt=attempt, count=header.members, intent=attempt)

            def apply() -> None:
                pending = bucket.ledger[PENDING]
                bucket.value = after_round(bucket.value, sum(each.value for each in bucket.sum) % PRIME)
                bucket.steps += 1
                bucket.members[bucket.steps] = pending
                bucket.move(pending, PENDING, APPLIED)
                bucket.state = bucket.state._replace(applied=attempt)
                self._audit.applied(number, bucket, attempt, tuple(sorted(bucket.sum)))
                done(bucket.state)

            self._second_half(run, apply, leave)

        self._enter(bucket, run, section)

    def contribute(
        self, number: int, header: Header, gradient: Gradient, applied: int | None, run: Run,
        done: Callable[[BucketOutcome], None],
    ) -> None:  # fmt: skip
        """As round_sum.contribute.  applied: that of the state after the close in the same run, or None."""
        bucket = self.buckets[number]

        def section(leave: Callable[[], None]) -> None:
            state, attempt, column = bucket.state, header.sequence, PENDING
            row = bucket.pushed.get(header.worker, Pushed())
            if state.voids(attempt):
                column = VOID
            if attempt in row.of(header):
                column = REPEATED
            if self.is_fenced(header):
                column = FENCED
            is_new, before = state.begins(attempt), state.count
            if column == PENDING:
                bucket.sum = [*([] if is_new else bucket.sum), gradient]

            def count() -> None:
                if column == PENDING:
                    before_this = 0 if is_new else before
                    if is_new:
                        bucket.move(bucket.ledger[PENDING], PENDING, VOID)
                    bucket.state = state._replace(attempt=attempt, count=before_this + 1)
                    bucket.pushed[header.worker] = Pushed(header.origin, row.of(header) | {attempt})
                bucket.ledger[RECEIVED] += 1
                bucket.ledger[column] += 1
                done(BucketOutcome(int(column), state.applied if applied is None else applied, 0 if is_new else before))

            self._second_half(run, count, leave)

        self._enter(bucket, run, section)

    def push(
        self, number: int, header: Header, gradient: Gradient, pulled: int, run: Run,
        done: Callable[[tuple[int, int, int]], None],
    ) -> None:  # fmt: skip
        """As guard.guarded_update, but that nothing comes between an update and its record.

        pulled: the version.  done: is called with the column, the staleness and the global step.
        """
        bucket = self.buckets[number]

        def section(leave: Callable[[], None]) -> None:
            def update() -> None:
                row, staleness = bucket.pushed.get(header.worker, Pushed()), bucket.version - pulled
                column = APPLIED if 0 <= staleness <= self.max_staleness else STALE
                if header.sequence in row.of(header):
                    column = REPEATED
                if self.is_fenced(header):
                    column = FENCED
                bucket.ledger[RECEIVED] += 1
                bucket.ledger[column] += 1
                if column == APPLIED:
                    bucket.value = after_round(bucket.value, gradient.value)
                    bucket.steps, bucket.version = bucket.steps + 1, bucket.version + 1
                    bucket.members[bucket.steps] = 1
                    bucket.pushed[header.worker] = Pushed(header.origin, row.of(header) | {header.sequence})
                    self._audit.applied(number, bucket, staleness, (gradient,))
                elif column != REPEATED:
                    self._audit.refused(gradient, column)
                done((int(column), staleness, self.global_step))

            self._second_half(run, update, leave)

        self._enter(bucket, run, section)

    def seal(self, number: int, run: Run, done: Callable[[None], None]) -> None:
        """As SectionRounds.seal: what is summed now counts no more."""
        bucket = self.buckets[number]

        def section(leave: Callable[[], None]) -> None:
            bucket.state = bucket.state._replace(count=0)
            leave()
            done(None)

        self._enter(bucket, run, section)

    # What the chief writes, behind the fence.

    def restore(self, number: int, value: int, steps: int, attempt: int) -> None:
        """The bucket as it was saved; nothing of a round is left."""
        bucket = self.buckets[number]
        undone = [step for step in bucket.members if step > steps]
        bucket.move(sum(bucket.members.pop(step) for step in undone), APPLIED, ROLLED_BACK)
        bucket.move(bucket.ledger[PENDING], PENDING, VOID)
        bucket.value, bucket.steps, bucket.sum, bucket.pushed = value, steps, [], {}
        bucket.version = max(bucket.version, steps) + RESTORE_LEAP
        bucket.state = SectionState(attempt, 0, attempt, attempt)

    @property
    def stats(self) -> PsStats:
        return stats_of([bucket.ledger for bucket in self.buckets.values()])

    @property
    def global_step(self) -> int:
        return self.buckets[0].steps if 0 in self.buckets else 0

    def cancel(self, worker: int) -> None:
        for run in self.runs.pop(worker, []):
            run.cancel(self.index)
