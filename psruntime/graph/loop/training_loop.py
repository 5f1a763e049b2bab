"""The training loop of a worker: steps, the end of the job, and the evaluation at the end.

It puts the parts together, in the order in which one needs the other: sessions, hooks, the steps of the mode.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

import tensorflow.compat.v1 as tf1

from psruntime.config.schedule import SYNC
from psruntime.core.members.messages import Assignment, Ending
from psruntime.errors import (
    CheckpointError,
    JobFailedError,
    JobOverError,
    PassingError,
    PsRuntimeError,
    ReplacedError,
    StopRequested,
)
from psruntime.faults import first_line
from psruntime.graph.base.errors import LOST_SESSION, users_errors
from psruntime.graph.base.types import Graph, Session
from psruntime.graph.loop.async_loop import AsyncLoop
from psruntime.graph.loop.local_training import LocalRounds, LocalTraining
from psruntime.graph.loop.loop_graphs import LoopGraph
from psruntime.graph.loop.round_loop import RoundLoop
from psruntime.graph.loop.step_runner import StepRunner, StepsOnly
from psruntime.graph.model.evaluate import LOGGED_EVERY_S, Measuring, PulledEvaluation, require_time
from psruntime.graph.session.save_hooks import CheckpointHook, ReplicaHook
from psruntime.graph.session.session import ModeChangedError, ViewHook, ViewSessionCreator, WorkerServer
from psruntime.graph.session.summary_hook import SummaryHook
from psruntime.graph.session.trace_hook import TraceHook
from psruntime.graph.session.worker_run import StepResult, WorkerRun
from psruntime.observe.log import first_line_of

SHOWN_EVERY_S = 1.0  # while a batch takes long


class FinalEvaluation:
    """Measures the final variables on held-out data.

    evaluation: gives what measures; its graph may be built by the first call.  limit_s: what it may take in all.
    show: called with how far it is, after each batch.  wait: the same while a batch takes long, which is no progress:
    the coordinator may give the end of the job to another worker.  The last one has until limit_s.

    failure: why the last one failed; empty if it did not.  is_stuck: whether one was left behind in a batch.
    """

    def __init__(
        self,
        evaluation: Callable[[], PulledEvaluation],
        limit_s: float,
        show: Callable[[str], None],
        wait: Callable[[str], None],
        log: Callable[..., None],
    ) -> None:
        self.failure = ""
        self.is_stuck = False
        self._evaluation, self._limit_s, self._show, self._wait, self._log = evaluation, limit_s, show, wait, log
        self._logged_s = 0.0
        self._logging = threading.Lock()  # by the thread that measures and by the one that waits

    def measure(self, open_session: Callable[[Graph], Session], global_step: int) -> dict[str, float] | None:
        """The metrics by name; None if it failed, which is logged.

        open_session: opens a session of a graph on the current view.

        Raises:
            OpError, ReplacedError, StopRequested, JobOverError: a ps or the membership is lost, or the job is over.
        """
        self.failure, self.is_stuck = "", False
        try:
            session = open_session(self._evaluation().graph)
            try:
                return self._measured(session)
            finally:
                if not self.is_stuck:  # else TensorFlow waits for what runs in it
                    session.close()
        except (*LOST_SESSION, ReplacedError, StopRequested, JobOverError):
            raise
        except Exception as error:  # noqa: BLE001 - the training is complete and saved: this is not its failure
            self.failure = str(error) if isinstance(error, PsRuntimeError) else first_line_of(error)
            self._log("evaluation_failed", global_step=global_step, reason=self.failure)
            return None

    def _measured(self, session: Session) -> dict[str, float]:
        """Measures in a thread of its own: what a batch waits for may never come, and nothing interrupts it."""
        so_far, began_s = [Measuring(0, 0, 0.0)], time.monotonic()
        outcome: Future[dict[str, float]] = Future()

        def on_batch(measured: Measuring) -> None:
            so_far[0] = measured
            require_time(measured, measured.seconds, self._limit_s)
            self._show(self._doing(measured))
            self._log_at_times(measured)

        def run() -> None:
            try:
                outcome.set_result(self._evaluation().measure(session, on_batch))
            except BaseException as error:  # noqa: BLE001 - it is raised again where it is waited for
                outcome.set_exception(error)

        thread = threading.Thread(target=run, name="evaluation", daemon=True)
        thread.start()
        thread.join(SHOWN_EVERY_S)
        while thread.is_alive():
            measured = so_far[0]._replace(seconds=time.monotonic() - began_s)
            self.is_stuck = measured.seconds >= self._limit_s + SHOWN_EVERY_S  # after `on_batch` could have ended it
            if self.is_stuck:
                require_time(measured, measured.seconds, self._limit_s)
            self._wait(self._doing(measured))
            self._log_at_times(measured)
            thread.join(SHOWN_EVERY_S)
        return outcome.result()

    def _doing(self, measured: Measuring) -> str:
        return f"evaluates: {measured} of at most {self._limit_s:g} s"

    def _log_at_times(self, measured: Measuring) -> None:
        with self._logging:
            now_s = time.monotonic()
            if measured.seconds < LOGGED_EVERY_S or now_s - self._logged_s < LOGGED_EVERY_S:
                return
            self._logged_s = now_s
        self._log("evaluating", reason=self._doing(measured))


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
        view_hook = ViewHook(run, self._creator)

        self._users = [
            StepsOnly(hook, graph.is_step, lambda: view_hook.global_step, run.log) for hook in graph.model.spec.hooks
        ]
        self._summaries, self._trace = SummaryHook(run, view_hook), TraceHook(run, view_hook)
        replicas = [ReplicaHook(run, built.replicas, view_hook)] if built.replicas else []
        self._checkpoints = CheckpointHook(run, built.checkpoints, view_hook)
        hooks = [*self._users, self._summaries, self._trace, *replicas, self._checkpoints]
        runner = StepRunner(graph, view_hook, hooks)
        self._hooks = [view_hook, runner, *hooks]
        run.control_plane.while_paused(runner.on_pause)

        self._local = LocalTraining(run, built, alone, server, runner) if alone and graph.rounds else None
        self._steps: AsyncLoop | RoundLoop
        if graph.rounds is None:
            self._steps = AsyncLoop(run, self._creator, runner, view_hook, self._on_step, self._has_stopped)
        else:
            local = LocalRounds(self._local, run.inputs) if self._local else None
            self._steps = RoundLoop(run, self._creator, runner, self._on_step, self._has_stopped, local)

    def run(self) -> None:
        """Returns when the job is done.

        Raises:
            ModeChangedError: the job continues in a mode for which there has to be another loop.
            StopRequested: the process was asked to stop.
            PsRuntimeError: the job failed, or this worker cannot continue.  Where the failure ends the job, the
                variables were saved before.
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
