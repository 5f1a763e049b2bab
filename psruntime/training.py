"""A worker with TensorFlow: Built (graph/loop/built.py), then Joined, then Training.  Each is made of the one before.

Imports TensorFlow, so only once its environment is set (graph/base/environment.py).
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from psruntime.config import JobConfig
from psruntime.config.job import as_started_so
from psruntime.config.schedule import SYNC
from psruntime.core.accounting.accounts import SentUpdate
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, HeldOut, Instructions, LeaveKind, Measurements, WorkerStats
from psruntime.core.members.view import Past, Phase, over_error
from psruntime.errors import (
    EXIT_DONE,
    JobDoneError,
    JobFailedError,
    JobStoppedError,
    PassingError,
    PsRuntimeError,
    StopRequested,
    UsageError,
)
from psruntime.graph.base.environment import tensorflow_version
from psruntime.graph.base.server import gpu_count, start_server
from psruntime.graph.checkpoint.listing import newest_step
from psruntime.graph.checkpoint.measured import HISTORY, BestCheckpoint
from psruntime.graph.loop.built import Built
from psruntime.graph.loop.loop_graphs import LoopGraph, ReadyGraphs
from psruntime.graph.loop.training_loop import FinalEvaluation, TrainingLoop
from psruntime.graph.model.evaluate import Measuring, logged, require_time
from psruntime.graph.session.session import ModeChangedError, WorkerServer, open_session
from psruntime.graph.session.worker_run import Observers, StepResult, WorkerRun
from psruntime.network.connections import WorkerLinks
from psruntime.network.interfaces import interface_for
from psruntime.observe.evaluations import StoredStopping, best_text_of, text_of
from psruntime.observe.log import Exact, first_line_of
from psruntime.observe.meter import TrafficMeter
from psruntime.process.machine import OwnMemory, this_machine
from psruntime.process.process import Process
from psruntime.rpc.client.coordinator_client import ClientContext, CoordinatorClient
from psruntime.rpc.client.join import Registration
from psruntime.rpc.worker.worker_membership import worker_membership

if TYPE_CHECKING:
    from psruntime.observe.metrics import Endpoint
    from psruntime.observe.worker_metrics import WorkerMetrics

AFTER_STOP_S = 5.0  # for the work to end once the job was stopped


def step_reached(client: CoordinatorClient, job: JobConfig) -> int:
    """The global step up to which the job has trained, since this start of it or before."""
    status, _ = client.get_status()
    return max(status.global_step, status.saved_step or 0, newest_step(job.checkpoint_dir) or 0)


class Joined:
    """A worker that is a member of its job: TensorFlow's server, the watch of its connections, and the membership.

    host: at which the others reach this process.  health_address: of its health service.
    """

    def __init__(self, built: Built, context: ClientContext, process: Process, host: str, health_address: str) -> None:
        where, job = built.where, built.job
        self.built, self.process = built, process
        self._gpu_memory = OwnMemory()
        if gpu_count():
            self._gpu_memory.start()
            process.at_exit.callback(self._gpu_memory.close)
        interface = interface_for(host, where.coordinator, where.interface)
        server, address = start_server(
            "worker", where.index, host, where.port, interface, built.towers.cpus, built.gpu_limits
        )
        self.server = WorkerServer(where.index, server.target, address)
        self._links = WorkerLinks(address, job.link_timeout_s, process.log)
        self._links.start()
        process.at_exit.callback(self._links.close)
        self._traffic = TrafficMeter(self._links.counts)
        self.graphs = ReadyGraphs(built.graphs, job.mode, self._graphs_changed, self._warm_up)

        past = Past(saved_step=newest_step(job.checkpoint_dir))
        machine = None if gpu_count() else this_machine(tensorflow_version())
        me = Registration(
            Role.WORKER, where.index, address, health_address, built.specs, past, built.train.identity, machine,
            built.began_at,
        )  # fmt: skip
        self.control_plane, self.membership = worker_membership(
            context, me, self._stats, process.at_exit,
            on_answer=self._receive, on_end=self._end, graphs=lambda: self.graphs.built,
        )  # fmt: skip
        self.membership.start(where.connect_timeout_s)
        process.at_exit.callback(self.membership.leave, LeaveKind.ASKED, "asked to stop")
        if built.owner:
            built.owner.keep(lambda: self.instructions)

    @property
    def instructions(self) -> Instructions:
        """The newest; raises what the membership failed with."""
        return self.membership.answer.instructions

    def _stats(self, waiting: str) -> WorkerStats:
        """The measurements for the next heartbeat."""
        stats = self.built.progress.stats(waiting)
        tensors = None if self.graphs.mode == SYNC else self.built.tensors
        return replace(stats, moved=self._traffic.moved(), step_tensors=tensors, gpus=self._gpu_memory())

    def _receive(self, answer: Answer) -> None:
        self._links.follow(answer.instructions)
        self.graphs.prepare(answer.instructions.build, answer.instructions.build_number)
        if answer.instructions.leave:
            self.process.terminate()

    def _end(self, error: PsRuntimeError) -> None:
        """The job is over for this worker."""
        stopped = isinstance(error, JobStoppedError)
        if not stopped and error.exit_code:
            self._links.give_up()
        self.process.end_within(AFTER_STOP_S if stopped else self.built.job.drain_timeout_s, error.exit_code)

    def _warm_up(self, graph: LoopGraph) -> None:
        graph.sessions.warm(self.server, self.instructions.view, self.control_plane.is_chief())

    def _graphs_changed(self) -> None:
        if failure := self.graphs.built.failure:
            self.process.log("cannot_build", reason=failure)
        self.control_plane.report_now()


class Training:
    """The training of a worker that has joined.  endpoint: of its metrics; None: it serves none."""

    def __init__(self, joined: Joined, endpoint: Endpoint | None) -> None:
        built, control_plane = joined.built, joined.control_plane
        self._joined, self._built, self._job, self._process = joined, built, built.job, joined.process
        self._log, self._control_plane, self._membership = joined.process.log, control_plane, joined.membership
        self._metrics = self._served_at(endpoint) if endpoint else None
        self._best = self._best_checkpoint() if self._job.measures else None
        self._stopping, self._ends_early = self._early_stopping(), False
        self._evaluation = FinalEvaluation(
            lambda: built.evaluation, self._job.evaluation_limit_s, control_plane.closed_part, control_plane.closes,
            self._log,
        )  # fmt: skip
        self._process.is_busy = self._is_busy

    def _is_busy(self) -> bool:
        graphs, best = self._joined.graphs, self._best
        measures = self._evaluation.is_stuck or (best is not None and best.is_measuring)
        return graphs.is_building or graphs.keeps_sessions or measures

    def run(self) -> int:
        """Trains until the job is over; returns the exit code.  Leaves with the reason when it fails."""
        self._process.ends_in_good_order(self._job.stop_grace_s)
        if self._built.recorder:
            self._built.recorder.begin()
        try:
            self._train()
        except StopRequested:
            raise
        except Exception as error:
            self._leave(*_reason_of(error))
            raise
        self._free_folder()  # before anything that fails where ps 0 has left
        over = self._joined.instructions
        self._leave(LeaveKind.OVER, f"the job is {over.phase}")
        if over.phase is Phase.STOPPED:
            raise over_error(over.phase, over.reason)
        if self._evaluation.failure:
            where = self._job.checkpoint_dir
            saved = f"saved in {where}" if where else "not saved, without --checkpoint-dir"
            raise JobFailedError(f"the job is done, and {saved}, but its evaluation failed: {self._evaluation.failure}")
        return EXIT_DONE

    def _train(self) -> None:
        """Trains in the job's mode, and in each that follows it."""
        built, joined, job = self._built, self._joined, self._job
        observers = Observers(
            self._on_step,
            self._metrics.checkpoint if self._metrics else lambda _: None,
            self._best.offer if self._best else lambda *_: None,
            self._record if built.recorder else None,
            built.summaries,
        )
        while True:
            graph = joined.graphs.enter(job.mode)
            run = WorkerRun(
                graph.train, built.inputs, self._control_plane, job, built.where.index, self._log, built.data_errors(),
                observers,
            )  # fmt: skip
            try:
                TrainingLoop(run, graph, joined.server, self._close, built.alone).run()
                joined.graphs.close()
                return
            except ModeChangedError:
                job = as_started_so(self._job, self._control_plane.mode, self._control_plane.bound)
                self._log("mode", mode=job.mode, bound=job.bound)

    def _leave(self, kind: LeaveKind, reason: str) -> None:
        """Leaves the job; one that is over needs its folder no more, which may be another's then."""
        if kind in (LeaveKind.OVER, LeaveKind.FATAL):
            self._free_folder()
        self._membership.leave(kind, reason)  # without effect where the job has failed already

    def _free_folder(self) -> None:
        if self._built.owner:
            self._built.owner.release()

    def _on_step(self, result: StepResult) -> None:
        if self._metrics:
            self._metrics.step(result.loss, result.examples, result.staleness, result.dropped, result.times)
        self._built.progress.step(result)

    def _record(self, update: SentUpdate) -> None:
        assert self._built.recorder is not None
        self._built.recorder.add(update, self._control_plane.mode, self._control_plane.bound)

    def _served_at(self, endpoint: Endpoint) -> WorkerMetrics:
        from psruntime.observe.worker_metrics import WorkerMetrics  # and prometheus_client, for --metrics-port alone

        return WorkerMetrics(endpoint, self._built.where.index, lambda: self._control_plane.stats)

    def _best_checkpoint(self) -> BestCheckpoint:
        job = self._job

        def on_batch(measured: Measuring) -> None:
            require_time(measured, measured.seconds, job.evaluation_limit_s)
            self._control_plane.closed_part()

        evaluation = self._built.of_checkpoints.observed(logged(self._log, on_batch))
        return BestCheckpoint(
            evaluation, job.checkpoint_dir, job.best_metric, self._log, self._on_measured, job.eval_every
        )

    def _early_stopping(self) -> StoredStopping | None:
        job = self._job
        if job.patience is None:
            return None
        return StoredStopping(os.path.join(job.checkpoint_dir, "best", HISTORY), job.best_metric, job.patience)

    def _on_measured(self, global_step: int, values: dict[str, float], best: tuple[int, float] | None) -> None:
        """Reports a measured checkpoint, and ends the job when its metric gets no better."""
        self._report(global_step, values, best)
        if self._stopping and (reason := self._stopping.add(global_step, values)) and not self._ends_early:
            self._ends_early = True
            self._log("stops_early", reason=reason)
            self._control_plane.stops_early(reason)

    def _close(self, global_step: int) -> None:
        """Measures the final variables on held-out data; prints the metrics for the user and logs them."""
        instructions = self._joined.instructions
        if instructions.stopping:
            return
        if self._best:
            self._best.close()
        if self._stopping:
            self._stopping.ended(global_step)
        values = self._evaluation.measure(
            lambda graph: open_session(self._joined.server, graph, instructions.view), global_step
        )
        if values is None:
            return
        self._process.show("held_out", text_of(global_step, values), global_step=global_step, **values)
        self._log("evaluation", global_step=global_step, **{name: Exact(value) for name, value in values.items()})
        best = self._best.best if self._best else None
        if best:
            name = self._job.best_metric.name
            self._process.show(
                "best_held_out", best_text_of(best[0], name, best[1]), global_step=best[0], **{name: best[1]}
            )
        self._report(global_step, values, best)

    def _report(self, global_step: int, values: dict[str, float], best: tuple[int, float] | None) -> None:
        """Adds metrics of held-out data to the summaries, and reports them to the coordinator."""
        if self._built.summaries:
            self._built.summaries.write(global_step, {f"evaluation/{name}": value for name, value in values.items()})
        last, name = HeldOut.of(global_step, values), self._job.best_metric.name
        self._control_plane.measured(Measurements(last, HeldOut.of(best[0], {name: best[1]}) if best else None))


def _reason_of(error: Exception) -> tuple[LeaveKind, str]:
    """What a worker says that leaves because of an error."""
    match error:
        case JobDoneError() | JobStoppedError():
            return LeaveKind.OVER, str(error)
        case PassingError():
            return LeaveKind.ERROR, str(error)
        case UsageError():
            return LeaveKind.USAGE, str(error)
        case JobFailedError():
            return LeaveKind.FATAL, str(error)
    return LeaveKind.ERROR, first_line_of(error)
