"""Steps that a worker takes by itself, and its part in local rounds, which contributes what these have changed.

They are steps of mode async, with the job's own plan, guard and optimizers; no other worker pushes to these ps.  What
has changed in the end, what the variables were less what they are, is kept like a gradient, for the round of mode sync
in which all workers put their changes together.  What optimizers keep beside the variables is not put together: that on
the ps of the job stays as it is.  What is kept is pushed again, as in other rounds, when the attempt became void.  In
another view the worker trains anew.

Averaging once: Zinkevich, Weimer, Smola and Li, Parallelized stochastic gradient descent, NIPS 2010.  Its weights:
McMahan, Moore, Ramage, Hampson and Aguera y Arcas, Communication-efficient learning of deep networks from decentralized
data, AISTATS 2017.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.config.job import as_trained_alone
from psruntime.core.members.messages import Assignment, Prepared
from psruntime.core.rounds.round_messages import Action, CutOff, Pushed
from psruntime.errors import JobFailedError
from psruntime.graph.base.errors import LOST_SESSION, users_errors
from psruntime.graph.base.types import Array, Feed, Session
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.loop.async_loop import AsyncLoop
from psruntime.graph.loop.loop_graphs import LoopGraph
from psruntime.graph.loop.round_runs import RoundRuns, are_accepted
from psruntime.graph.loop.step_runner import StepRunner, StepsOnly
from psruntime.graph.recovery.ps_values import Chunk, PsValues
from psruntime.graph.session.session import Preparing, ViewHook, ViewSessionCreator, WorkerServer, open_session
from psruntime.graph.session.worker_run import AloneControl, Observers, StepResult, TrainsNoMoreError, WorkerRun

MOST_BYTES = (1 << 31) - (1 << 20)  # of a message, without its head


@dataclass(frozen=True)
class Trained:
    """What came of it.  examples: of all steps.  weight: of their batches.  loss: of the last."""

    examples: int
    weight: float
    loss: float


class LocalTraining:
    """Of one worker; every `train` begins anew.

    run: the worker's in mode sync.  built: its graph.  alone: the graph of the steps by itself.  runner: of the job's
    session.
    """

    def __init__(
        self,
        run: WorkerRun,
        built: LoopGraph,
        alone: LoopGraph,
        server: WorkerServer,
        runner: StepRunner,
    ) -> None:
        assert run.graph.rounds is not None and run.graph.rounds.local is not None
        self._run, self._rounds = run, run.graph.rounds.local
        self._alone, self._runner = alone, runner
        self._carried = _Carried(alone.preparation, built.ps_values, alone.ps_values, runner)
        self._first = 0  # global step at which it begins
        self._trained = Trained(0, 0.0, 0.0)
        self._control = AloneControl(run.control_plane)
        graph, job = alone.train, as_trained_alone(run.job)
        own = replace(run, graph=graph, control_plane=self._control, job=job, log=_silent, observers=Observers())
        self._creator = ViewSessionCreator(
            graph.graph, self._control, self._carried, _silent, partial(open_session, server, graph.graph),
            alone.initialise,
        )  # fmt: skip
        view_hook = ViewHook(own, self._creator, takes_copies=False)  # they are the worker's, and stay
        self._users = [
            StepsOnly(hook, graph.is_step, lambda: view_hook.global_step, run.log) for hook in graph.model.spec.hooks
        ]
        own_runner = StepRunner(graph, view_hook, self._users)
        self._hooks = [view_hook, own_runner, *self._users]
        self._steps = AsyncLoop(own, self._creator, own_runner, view_hook, self._stepped, lambda: self.has_stopped)

    @property
    def has_stopped(self) -> bool:
        """Whether a hook of the model, in the graph of these steps, wants no further one."""
        return any(hook.stop_requested for hook in self._users)

    def train(self, session: Session, assignment: Assignment, end: int) -> Trained | None:
        """Trains from what the ps of the job hold, in its `session`, up to global step `end`, and keeps the change.

        Returns None if the view, or the training of the job or of this worker, is over before.

        Raises:
            JobFailedError: a variable is not finite in the end, or the loss on the way, where that ends the job.
        """

        def train(step_context: tf1.train.MonitoredSession.StepContext) -> Trained | None:  # noqa: ARG001 - its session is not the newest in a repeat
            try:
                return self._train(assignment, end)
            except _JobLostError as lost:
                raise lost.error from None  # the session is opened anew, and this is called again

        trained: Trained | None = session.run_step_fn(train)
        return trained

    def _train(self, assignment: Assignment, end: int) -> Trained | None:
        run, graph, ps = self._run, self._alone.train, self._alone.own_ps
        if not run.control_plane.is_current(assignment):
            return None
        self._first = self._carried.global_step
        self._runner.on_pause(self._first)
        began_s, self._trained, trained = time.monotonic(), Trained(0, 0.0, 0.0), None
        scale = run.control_plane.learning_rate_scale
        view = ps.begin(run.index, assignment.incarnation, run.job.max_workers, scale)
        self._control.begin(assignment, view, self._first, end)
        run.log("local_began", global_step=self._first, until=end)
        try:
            with (
                users_errors(graph.graph),
                graph.graph.as_default(),
                tf1.train.MonitoredSession(session_creator=self._creator, hooks=self._hooks) as own,
            ):
                self._steps.run(own)
                if not self._control.steps_left:
                    own.run_step_fn(lambda step_context: self._keep(step_context.session, end))
                    trained = self._trained
        except TrainsNoMoreError:
            return None
        finally:
            self._steps.leave()
            ps.clear()
        if trained:
            seconds = round(time.monotonic() - began_s, 3)
            run.log("local_ended", global_step=end, examples=trained.examples, seconds=seconds)
        return trained

    def _stepped(self, result: StepResult) -> None:
        so_far = self._trained
        self._trained = Trained(so_far.examples + result.examples, so_far.weight + result.weight, result.loss)
        self._run.observers.on_step(result)
        self._runner.on_pause(self._first)

    def _keep(self, own_session: Session, end: int) -> None:
        """Keeps how every bucket has changed: of a table the rows that have, and their numbers."""
        for bucket, change in self._rounds.change.items():
            kept = self._carried.changes(own_session, bucket, by_rows=change.indices is not None)
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
            self._carried.run_on_job(self._rounds.keep[bucket], dict(zip(change.tensors, kept, strict=True)))


class _Carried:
    """Prepares the worker's own ps with what those of the job hold, and computes how they differ in the end.

    runner: has the session with the ps of the job.
    """

    def __init__(self, preparation: Preparing, ps_values: PsValues, own: PsValues, runner: StepRunner) -> None:
        self._preparation, self._ps_values, self._own, self._runner = preparation, ps_values, own, runner

    def run(self, session: Session, assignment: Assignment) -> Prepared:
        prepared = self._preparation.run(session, assignment)
        for chunk in self._ps_values.chunks():
            self._own.write(session, chunk, self._read(chunk))
        return prepared

    def require(self, session: Session, assignment: Assignment) -> None:
        self._preparation.require(session, assignment)

    def changes(self, own_session: Session, bucket: str, by_rows: bool) -> list[Array]:
        """What the parameters of a bucket were less what they are; by_rows: only rows that differ, and their numbers,
        int64."""
        values, numbers = [], []
        for chunk in self._ps_values.chunks(bucket):
            change = self._read(chunk) - self._own.read(own_session, chunk)
            if by_rows:
                rows = np.flatnonzero(change.reshape(len(change), -1).any(axis=1))
                numbers.append(chunk.first + rows)
                change = change[rows]
            values.append(change)
        arrays = [values, numbers] if by_rows else [values]
        return [np.concatenate(chunks) if len(chunks) > 1 else chunks[0] for chunks in arrays]

    @property
    def global_step(self) -> int:
        """That of the job."""
        return int(self.run_on_job(self._ps_values.global_step))

    def run_on_job(self, fetches: Any, feed: Feed | None = None) -> Any:
        """Runs something on the ps of the job."""
        return _or_lost(self._runner.session.run, fetches, feed)

    def _read(self, chunk: Chunk) -> Array:
        """From the ps of the job."""
        return _or_lost(self._ps_values.read, self._runner.session, chunk)


class _JobLostError(Exception):
    """The session with the ps of the job is lost, which is not that with the worker's own."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _or_lost(call: Callable[..., Any], *arguments: Any) -> Any:
    """A call that runs something in the session with the ps of the job."""
    try:
        return call(*arguments)
    except LOST_SESSION as error:
        raise _JobLostError(error) from error


def _silent(event: str, **facts: object) -> None:
    """The log of views and sessions: those of a worker alone have no lines."""


class LocalRounds:
    """Of one worker, whose batches are those of `inputs`.  trained: for the newest round."""

    def __init__(self, training: LocalTraining, inputs: InputStream) -> None:
        self.trained: Trained | None = None
        self._training, self._inputs = training, inputs
        self._kept_for: tuple[Assignment, int] | None = None  # and the first attempt of the round

    def contribute(
        self, session: Session, assignment: Assignment, action: Action, runs: RoundRuns
    ) -> Pushed | CutOff | None:
        """Carries out the action.  Returns None if the next action is to follow without a report."""
        if self._kept_for != (assignment, action.opened):
            self._kept_for, self.trained = None, self._training.train(session, assignment, action.round)
            if self.trained is None:
                return None
            self._kept_for = assignment, action.opened
        assert self.trained is not None
        weight = self.trained.weight
        outcomes = runs.contribute(session, assignment, action, scale=weight)
        if outcomes is None:
            return CutOff(action.round, action.attempt)
        if not are_accepted(outcomes):
            return None
        return Pushed(action.round, action.attempt, self._inputs.drawn - 1, weight, apart=True)
