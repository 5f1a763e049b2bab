"""Checkpoints of a simulated job, and the preparation of a view: graph/recovery/prepare.py with its decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.members.messages import Assignment, Prepared
from psruntime.core.recovery.recovery import Contents, decide, lost_work, obstacle
from psruntime.core.rounds.contribution import hold_same_rounds
from psruntime.errors import CannotPrepareError, JobFailedError, ReplacedError
from tests.simulation.kernel import Process
from tests.simulation.servers import Header, Run, Servers
from tests.simulation.session import Session

KEEP = 2  # checkpoints


@dataclass
class Checkpoint:
    """The global step, and of each bucket the value and the rounds or updates in it."""

    global_step: int
    values: dict[int, tuple[int, int]]


@dataclass
class Folder:
    """The folder of the checkpoints, which all workers see.  fails_until_s: writes fail before that virtual time."""

    checkpoints: list[Checkpoint] = field(default_factory=list)
    fails_until_s: float = 0.0

    @property
    def newest_step(self) -> int | None:
        return self.checkpoints[-1].global_step if self.checkpoints else None


class Checkpoints:
    """Writes them as the chief: in mode sync of all buckets if they have the same rounds."""

    def __init__(self, folder: Folder, process: Process, has_rounds: bool) -> None:
        self._folder, self._process, self._has_rounds = folder, process, has_rounds

    def save(self, session: Session, fails: bool = True) -> Checkpoint | None:
        """None: a round is applied to some buckets alone, or the folder cannot be written where it may fail."""
        parts = {}
        for number, home in session.homes.items():

            def act(run: Run, done: Callable[[Any], None], number: int = number, home: Servers = home) -> None:
                bucket = home.buckets[number]
                done((bucket.steps, bucket.value, bucket.state.intent == bucket.state.applied))

            parts[number] = (home, act)
        read = session.run(parts)
        is_torn = len({steps for steps, _, _ in read.values()}) != 1 or not all(whole for _, _, whole in read.values())
        if self._has_rounds and is_torn:
            return None
        if fails and self._process.simulation.now_s < self._folder.fails_until_s:
            return None
        values = {number: (value, steps) for number, (steps, value, _) in read.items()}
        checkpoint = Checkpoint(read[0][0], values)
        kept = [each for each in self._folder.checkpoints if each.global_step != checkpoint.global_step]
        self._folder.checkpoints = sorted([*kept, checkpoint], key=lambda each: each.global_step)[-KEEP:]
        return checkpoint


class Preparation:
    """As graph/recovery/prepare.py, with its decisions, of a job in mode sync."""

    def __init__(
        self,
        folder: Folder,
        process: Process,
        checkpoints: Checkpoints,
        worker: int,
        on_restore: Callable[[int, Any], None],
    ) -> None:
        self._folder, self._process, self._checkpoints = folder, process, checkpoints
        self._worker, self._on_restore = worker, on_restore

    def require(self, session: Session, assignment: Assignment) -> None:
        contents = self._contents(session)
        if any(each is not Contents.PREPARED for each in contents):
            raise tf1.errors.UnavailableError(None, None, "a ps is not prepared")

    def run(self, session: Session, assignment: Assignment) -> Prepared:
        contents = self._contents(session)
        homes = session.homes
        session.run({n: (home, partial(self._sealed, home, n)) for n, home in homes.items()})
        states = session.run({n: (home, partial(_state_of, home, n)) for n, home in homes.items()})
        attempt = max(max(state.attempt, state.intent) for state in states.values())
        same = hold_same_rounds(list(states.values()))
        recovery = decide(contents, False, assignment.restore, same)
        if not recovery.ps:
            return Prepared(self._step(session), attempt, saved_step=self._saved_step(assignment))
        if reason := obstacle(self._folder.newest_step, assignment.saved_step, "the folder"):
            raise CannotPrepareError(reason)
        newest = self._folder.checkpoints[-1] if self._folder.checkpoints else None
        if newest is None and assignment.seen_step > 0:
            raise JobFailedError(lost_work(assignment.seen_step, recovery.reason, "--checkpoint-dir"))
        live_step = self._step(session) if contents[0] is Contents.PREPARED else 0
        step = newest.global_step if newest else 0
        self._write(session, assignment, _begin)
        values = newest.values if newest else {number: (number + 1, 0) for number in homes}

        def put(servers: Servers) -> None:
            if servers is homes[0]:
                self._on_restore(step, values)
            for number in servers.numbers:
                servers.restore(number, *values[number], attempt)

        self._write(session, assignment, put)
        if newest is None:
            self._checkpoints.save(session, fails=False)  # else the job would not begin
        self._write(session, assignment, _finish)
        lost = max(0, max(live_step, 0) - step)
        return Prepared(step, attempt, lost, self._saved_step(assignment))

    def _saved_step(self, assignment: Assignment) -> int | None:
        return assignment.saved_step if self._folder.newest_step is None else self._folder.newest_step

    @staticmethod
    def _sealed(home: Servers, number: int, run: Run, done: Callable[[Any], None]) -> None:
        home.seal(number, run, done)

    def _contents(self, session: Session) -> list[Contents]:
        read = session.run({s.index: (s, partial(_contents_of, s)) for s in session.servers})
        return [read[s.index] for s in session.servers]

    def _step(self, session: Session) -> int:
        home = session.homes[0]
        return int(session.run({0: (home, lambda run, done: done(home.global_step))})[0])

    def _write(self, session: Session, assignment: Assignment, act: Callable[[Servers], None]) -> None:
        """On each ps, which refuses unless it admits this incarnation.

        Raises:
            ReplacedError: one refused.
        """

        def write(servers: Servers, run: Run, done: Callable[[bool], None]) -> None:
            is_admitted = not servers.is_fenced(Header(self._worker, assignment.incarnation, 0, 0, 0.0, 0, 0))
            if is_admitted:
                act(servers)
            done(is_admitted)

        done = session.run({s.index: (s, partial(write, s)) for s in session.servers})
        if not all(done.values()):
            raise ReplacedError("a ps does not admit this chief")


def _begin(servers: Servers) -> None:
    servers.contents = Contents.BEGUN


def _finish(servers: Servers) -> None:
    servers.contents = Contents.PREPARED


def _state_of(home: Servers, number: int, run: Run, done: Callable[[Any], None]) -> None:
    done(home.buckets[number].state)


def _contents_of(servers: Servers, run: Run, done: Callable[[Any], None]) -> None:
    done(servers.contents)
