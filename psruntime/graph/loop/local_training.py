"""Steps that a worker takes by itself: on ps of its own, which begin with what the ps of the job hold.

They are steps of mode async, with the job's own plan, guard and optimizers; nobody else pushes to these ps.  What has
changed in the end, what the variables were less what they are, is kept like a gradient, for the round of mode sync in
which all workers put their changes together.  What optimizers keep beside the variables is not put together: that on
the ps of the job stays as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.config import as_trained_alone
from psruntime.core.members.messages import Assignment, Prepared
from psruntime.errors import JobFailedError
from psruntime.graph.base.errors import LOST_SESSION
from psruntime.graph.base.failed_operation import users_errors
from psruntime.graph.loop.alone_control import AloneControl
from psruntime.graph.loop.loop_graphs import LoopGraph
from psruntime.graph.loop.push_steps import PushSteps
from psruntime.graph.loop.step_runner import StepRunner
from psruntime.graph.ps.private_ps import PrivatePs
from psruntime.graph.recovery.held_values import HeldValues
from psruntime.graph.session.session import Preparing, ViewSessionCreator, WorkerServer
from psruntime.graph.session.step_result import StepResult
from psruntime.graph.session.view_hook import ViewHook
from psruntime.graph.session.worker_run import WorkerRun

MOST_BYTES = (1 << 31) - (1 << 20)  # of a message, without its head


@dataclass(frozen=True)
class Trained:
    """What came of it.  examples: of all steps.  loss: of the last."""

    examples: int
    loss: float


class LocalTraining:
    """Of one worker; every `run` is a training of its own.

    run: the worker's in mode sync.  built: its graph.  alone: the graph of the steps by itself.  on_step: as in
    PushSteps.  rest: called between two steps, to do what is done around those of the job.
    """

    def __init__(
        self,
        run: WorkerRun,
        built: LoopGraph,
        alone: LoopGraph,
        server: WorkerServer,
        on_step: Callable[[StepResult], None],
        rest: Callable[[], None],
    ) -> None:
        assert run.graph.rounds is not None and run.graph.rounds.local is not None
        self._run, self._rounds, self._alone = run, run.graph.rounds.local, alone.train
        self._on_step, self._rest = on_step, rest
        self._result: StepResult | None = None
        self._examples = 0
        self._ps: PrivatePs | None = None
        self._begin = _Begin(alone.preparation, built.held, alone.held)
        self._control = AloneControl(run.control_plane)
        job = as_trained_alone(run.job)
        own = replace(run, graph=alone.train, control_plane=self._control, job=job, log=_silent)
        self._creator = ViewSessionCreator(
            server, alone.train.graph, self._control, self._begin, _silent, alone.initialise
        )
        view = ViewHook(own, self._creator)
        runner = StepRunner(alone.train, view, [])
        self._hooks = [view, runner]
        self._steps = PushSteps(own, self._creator, runner, view, self._stepped, lambda: False)

    def run(self, session: Any, assignment: Assignment, end: int) -> Trained | None:
        """Trains from what the ps of `session` hold up to global step `end`, and keeps the change.

        Returns None if the view, or the training of the job, is over before.

        Raises:
            JobFailedError: a variable is not finite in the end, or the loss on the way, where that ends the job.
        """

        def train(step_context: Any) -> Trained | None:
            try:
                return self._train(step_context.session, assignment, end)
            except _JobsSessionLostError as lost:
                raise lost.error from None  # the session is opened anew, and this is called again

        trained: Trained | None = session.run_step_fn(train)
        return trained

    def _train(self, session: Any, assignment: Assignment, end: int) -> Trained | None:
        if not self._run.control_plane.holds(assignment):
            return None
        self._ps = self._ps or PrivatePs(self._alone.plan.num_ps, self._run.job.max_workers)
        began_s, self._examples, self._result = time.monotonic(), 0, None
        first = int(_of_job(session.run, self._begin.global_step))
        self._begin.session = session
        self._control.begin(assignment, self._ps.begin(self._run.index, assignment.incarnation), first, end)
        self._run.log("local_began", global_step=first, until=end)
        try:
            with (
                users_errors(self._alone.graph),
                self._alone.graph.as_default(),
                tf1.train.MonitoredSession(session_creator=self._creator, hooks=self._hooks) as own,
            ):
                self._steps.run(own)
                if self._control.steps_left:
                    return None
                own.run_step_fn(lambda step_context: self._keep(session, step_context.session, end))
        finally:
            self._steps.leave()
            self._ps.clear()
        assert self._result is not None
        trained, seconds = Trained(self._examples, self._result.loss), time.monotonic() - began_s
        self._run.log("local_ended", global_step=end, examples=trained.examples, seconds=round(seconds, 3))
        return trained

    def _stepped(self, result: StepResult) -> None:
        self._result = result
        self._examples += result.examples
        self._on_step(result)
        self._rest()

    def _keep(self, session: Any, own_session: Any, end: int) -> None:
        """Keeps how every bucket has changed: of a table the rows that have, and their numbers."""
        for bucket, change in self._rounds.change.items():
            kept = _of_job(self._begin.changes, own_session, bucket, change.indices is not None)
            if not np.isfinite(kept[0]).all():
                raise JobFailedError(
                    f"worker {self._run.index} has come to numbers that are not finite by itself, up to global step "
                    f"{end} (local stage)"
                )
            if (size := sum(array.nbytes for array in kept)) > MOST_BYTES:
                raise JobFailedError(
                    f"worker {self._run.index} has changed {size} bytes of bucket {bucket} by itself, up to global "
                    f"step {end}, and can send {MOST_BYTES} at most: shorten the local stage, or give more ps"
                )
            _of_job(session.run, self._rounds.keep[bucket], dict(zip(change.tensors, kept, strict=True)))


class _Begin:
    """Prepares the worker's own ps with what those of the job hold, and tells how they differ in the end.

    session: with the ps of the job.  global_step: a tensor of its graph.
    """

    def __init__(self, preparation: Preparing, held: HeldValues, own: HeldValues) -> None:
        self.session: Any = None
        self.global_step = held.global_step
        self._preparation, self._held, self._own = preparation, held, own

    def run(self, session: Any, assignment: Assignment) -> Prepared:
        prepared = self._preparation.run(session, assignment)
        _of_job(self._held.copy, self.session, self._own, session)
        return prepared

    def require(self, session: Any, assignment: Assignment) -> None:
        self._preparation.require(session, assignment)

    def changes(self, own_session: Any, bucket: str, by_rows: bool) -> list[Any]:
        """What the parameters of a bucket were less what they are; by_rows: only rows that differ, and their numbers,
        int64."""
        values, numbers = [], []
        for first, change in self._held.less(self.session, self._own, own_session, bucket):
            if by_rows:
                rows = np.flatnonzero(change.reshape(len(change), -1).any(axis=1))
                numbers.append(first + rows)
                change = change[rows]
            values.append(change)
        arrays = [values, numbers] if by_rows else [values]
        return [np.concatenate(portions) if len(portions) > 1 else portions[0] for portions in arrays]


class _JobsSessionLostError(Exception):
    """The session with the ps of the job is lost, which is not that with the worker's own."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _of_job(call: Callable[..., Any], *arguments: Any) -> Any:
    """A call that runs something in the session with the ps of the job."""
    try:
        return call(*arguments)
    except LOST_SESSION as error:
        raise _JobsSessionLostError(error) from error


def _silent(event: str, **facts: object) -> None:
    """What a job tells of its views and sessions is not said of those of a worker alone."""
