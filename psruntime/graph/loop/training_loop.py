"""The training loop of a worker: steps while the job trains, stops when it drains, closes the job as the chief.

It puts the parts together, in the order in which one needs the other: sessions, hooks, the steps of the mode.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

import tensorflow.compat.v1 as tf1

from psruntime.config.schedule import SYNC
from psruntime.core.members.messages import Assignment, Ending
from psruntime.errors import CheckpointError, JobFailedError, PassingError, PsRuntimeError, ReplacedError
from psruntime.graph.base.errors import LOST_SESSION, first_line
from psruntime.graph.base.failed_operation import users_errors
from psruntime.graph.base.types import Session
from psruntime.graph.hooks.checkpoint_hook import CheckpointHook
from psruntime.graph.hooks.model_hooks import StepsOnly
from psruntime.graph.hooks.replica_hook import ReplicaHook
from psruntime.graph.hooks.summary_hook import SummaryHook
from psruntime.graph.hooks.trace_hook import TraceHook
from psruntime.graph.loop.async_loop import AsyncLoop
from psruntime.graph.loop.local_rounds import LocalRounds
from psruntime.graph.loop.local_training import LocalTraining
from psruntime.graph.loop.loop_graphs import LoopGraph
from psruntime.graph.loop.round_loop import RoundLoop
from psruntime.graph.loop.step_runner import StepRunner
from psruntime.graph.session.session import ModeChangedError, ViewSessionCreator, WorkerServer
from psruntime.graph.session.step_result import StepResult
from psruntime.graph.session.view_hook import ViewHook
from psruntime.graph.session.worker_run import WorkerRun


class Steps(Protocol):
    """How a mode trains."""

    def run(self, session: Session) -> None:
        """Takes steps until training stops."""

    def leave(self) -> None:
        """Gives the batches back that no step took: another loop goes on with the input."""


class TrainingLoop:
    """Runs `run()` once, in a thread of its own.

    built: the graph of the worker's run, with what is in it beside the steps.
    close: called by the chief with the last global step, between the last checkpoint and the end of the job.
    alone: the graph of steps that the worker takes by itself; None: the job has no local stage.
    """

    def __init__(
        self,
        run: WorkerRun,
        built: LoopGraph,
        server: WorkerServer,
        close: Callable[[int], None],
        alone: LoopGraph | None = None,
    ) -> None:
        graph = run.graph
        if run.inputs.shards is not None:
            run.inputs.take_shards_from(run.control_plane.shards)
        self._run, self._control_plane, self._close = run, run.control_plane, close
        self._failure: JobFailedError | None = None  # for which the job ends, once it is saved

        self._creator = ViewSessionCreator(
            graph.graph, run.control_plane, built.preparation, run.log,
            partial(built.sessions.open, server, self._is_left), built.initialise, graph.rounds is not None,
        )  # fmt: skip
        view = ViewHook(run, self._creator)

        self._users = [
            StepsOnly(hook, graph.is_step, lambda: view.global_step, run.log) for hook in graph.model.spec.hooks
        ]
        self._summaries, self._trace = SummaryHook(run, view), TraceHook(run, view)
        replicas = [ReplicaHook(run, built.replicas, view)] if built.replicas else []
        self._checkpoints = CheckpointHook(run, built.checkpoints, view)
        hooks = [*self._users, self._summaries, self._trace, *replicas, self._checkpoints]
        runner = StepRunner(graph, view, hooks)
        self._hooks = [view, runner, *hooks]
        run.control_plane.while_paused(runner.on_pause)

        self._local = LocalTraining(run, built, alone, server, runner) if alone and graph.rounds else None
        self._steps: Steps
        if graph.rounds is None:
            self._steps = AsyncLoop(run, self._creator, runner, view, self._on_step, self._has_stopped)
        else:
            local = LocalRounds(self._local, run.inputs) if self._local else None
            self._steps = RoundLoop(run, self._creator, runner, self._on_step, self._has_stopped, local)

    def run(self) -> None:
        """Returns when the job is done.

        Raises:
            ModeChangedError: the job goes on in a mode for which there has to be another loop.
            StopRequested: the process was asked to stop.
            PsRuntimeError: the job failed, or this worker cannot go on.  Where what failed here ends the job, what was
                trained was saved before.
        """
        try:
            self._train()
        except ModeChangedError:
            self._steps.leave()
            self._trace.leave()
            self._checkpoints.leave()
            raise
        except JobFailedError as error:
            raise self._failure or error from None  # of which every other process has the text alone
        if self._failure:
            raise self._failure

    def _train(self) -> None:
        graph = self._run.graph
        with (
            users_errors(graph.graph),
            graph.graph.as_default(),
            tf1.train.MonitoredSession(session_creator=self._creator, hooks=self._hooks) as session,
        ):
            while True:
                self._take_steps(session)
                assignment = self._creator.assignment
                ending = self._control_plane.await_end(assignment)
                if ending is Ending.OVER:
                    return
                if ending is Ending.RESUME:
                    session.run(graph.read_step)  # opens a session on the new view
                else:
                    self._finish(session, assignment)

    def _take_steps(self, session: Session) -> None:
        """Until training stops.  After an error that ends the job this worker takes none, and helps to save."""
        if self._failure:
            return
        try:
            self._steps.run(session)
        except (PassingError, CheckpointError):
            raise
        except JobFailedError as error:
            self._failure = error
            self._control_plane.fails(str(error))

    def _finish(self, session: Session, assignment: Assignment) -> None:
        """Writes the last checkpoint and evaluates.  The control plane says what comes next if something is lost."""
        try:
            global_step = int(session.run(self._checkpoints.closing))
            self._control_plane.closed_part()
            if not self._control_plane.is_current(assignment):
                return
            self._close(global_step)
            self._control_plane.report_finished(assignment)
        except ReplacedError as error:
            self._control_plane.back_off(str(error))
        except LOST_SESSION as error:
            self._control_plane.back_off(f"a ps was lost while the job ended: {first_line(error)}")

    def _on_step(self, result: StepResult) -> None:
        self._summaries.step(result)
        self._trace.step(result)
        self._run.observers.on_step(result)

    def _has_stopped(self) -> bool:
        """Whether a hook of the model wants no further step.  Raises what a hook failed with."""
        for hook in self._users:
            if hook.failure:
                raise hook.failure
        return any(hook.stop_requested for hook in self._users) or (self._local is not None and self._local.has_stopped)

    def _is_left(self) -> bool:
        """Whether the steps of the job are those of another graph now, and no checkpoint is written from this one."""
        has_rounds = self._run.graph.rounds is not None
        with suppress(PsRuntimeError):  # the membership has ended
            return (self._control_plane.mode == SYNC) != has_rounds and not self._checkpoints.is_writing
        return False
