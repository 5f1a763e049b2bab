"""A worker: draws batches, pulls, computes, pushes.

python -m psruntime.worker --index N [--model MODULE] [--coordinator HOST:PORT]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from psruntime.config import JobConfig
from psruntime.config.devices import AUTO_GPU
from psruntime.config.job import as_started_so, as_trained_alone
from psruntime.config.process import ProcessConfig, SecurityConfig, WorkerConfig
from psruntime.config.schedule import LOCAL
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, Instructions, LeaveKind, WorkerStats
from psruntime.core.members.past import Past
from psruntime.core.members.view import Phase, over_error
from psruntime.core.plan.plan import make_plan
from psruntime.core.plan.plan_report import report
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
from psruntime.evaluation.history import text_of
from psruntime.graph.base import allocator
from psruntime.graph.hooks.progress import Progress
from psruntime.model import EVAL, TRAIN, Context, input_seed, load_model
from psruntime.network.hosts import await_names
from psruntime.network.links import WorkerLinks
from psruntime.observe.log import Log, first_line_of
from psruntime.observe.outputs import entry
from psruntime.observe.recorder import Recorder
from psruntime.observe.traffic import TrafficMeter
from psruntime.process import flags
from psruntime.process.gpus import VISIBLE, OwnMemory, choose_gpu, gpus, smallest_memory
from psruntime.process.machine import this_machine
from psruntime.process.process import Process, run, usage_error
from psruntime.rpc.client.context import ClientContext
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.client.job_settings import fetch_job
from psruntime.rpc.client.join import Registration, end_reported, report_usage
from psruntime.rpc.client.retry import retrying
from psruntime.rpc.security.credentials import Security, load_security
from psruntime.rpc.server.rpc_server import serve_health
from psruntime.rpc.worker.join_worker import join_worker

if TYPE_CHECKING:
    from psruntime.core.accounting.update_outcome import SentUpdate
    from psruntime.graph.base.summary_writer import SummaryWriter
    from psruntime.graph.checkpoint.best import BestCheckpoint
    from psruntime.graph.checkpoint.owner import FolderOwner
    from psruntime.graph.input.data_errors import DataErrors
    from psruntime.graph.loop.final_evaluation import FinalEvaluation
    from psruntime.graph.loop.loop_graphs import LoopGraph
    from psruntime.graph.recovery.warm_start import WarmStart
    from psruntime.metrics.endpoint import Endpoint

PROG = "psruntime worker"
STOP_S = 0.2  # for health calls under way at the end; a process that has to end now has 5 s in all
AFTER_STOP_S = 5.0  # for the work to end once the job was stopped


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until the job is over or a signal comes; returns the exit code."""
    words, parser = list(sys.argv[1:] if argv is None else argv), _parser()
    try:
        arguments = parser.parse_args(words)
        where, worker = flags.process_config(arguments), flags.worker_config(arguments)
        security = load_security(flags.security_config(arguments))
    except SystemExit:
        if parser.complaint:
            _report_usage(words, parser.complaint)
        raise
    except UsageError as error:
        _report_usage(words, str(error))
        return usage_error(PROG, error)
    allocator.share_arenas()
    work = partial(_work, where, worker, flags.given(arguments, JobConfig), security)
    return run(Log("worker", where.index, where.log_format), work, arguments.lifeline)


def _parser() -> flags.Parser:
    parser = flags.Parser(
        PROG,
        "A worker: trains the job's model.  It learns the job's settings from the coordinator; a flag that contradicts "
        "one of them is refused.",
        first=(
            "index", "coordinator", "model", "data_dir", "batch_size", "seed", "eval_batches", "devices", "gpu_memory",
            "record", "host", "metrics_port", "connect_timeout_s", "log_format",
        ),
    )  # fmt: skip
    parser.add_settings(WorkerConfig)
    flags.add_process_flags(parser)
    parser.add_settings(JobConfig, checked=True)
    return parser


def _report_usage(words: Sequence[str], reason: str) -> None:
    """Reports to the coordinator that this worker's flags are wrong, if they say which it is and which worker."""
    parser = flags.LenientParser()
    parser.add_settings(ProcessConfig, only=("index", "coordinator"))
    parser.add_settings(SecurityConfig)
    with suppress(UsageError):
        arguments, _ = parser.parse_known_args(words)
        where = flags.process_config(arguments)
        if "coordinator" not in flags.given(arguments, ProcessConfig):
            return  # what listens at the default address may be another job
        report_usage(where.coordinator, load_security(flags.security_config(arguments)), where.index, reason)


def _work(
    where: ProcessConfig, worker: WorkerConfig, given: dict[str, Any], security: Security, process: Process
) -> int:
    await_names(where, process.stop, process.log)
    client = CoordinatorClient(where.coordinator, security)
    process.at_exit.callback(client.close)
    with end_reported(client, where.index):
        trainer = _joined(client, where, worker, given, security, process)
    return trainer.train()


def _joined(
    client: CoordinatorClient, where: ProcessConfig, worker: WorkerConfig, given: dict[str, Any], security: Security,
    process: Process,
) -> _Trainer:  # fmt: skip
    """A worker that is a member of the job, and ready to train."""
    job = fetch_job(client, given, where.connect_timeout_s, process.stop, process.log, where.index)
    if job.train_steps is None and job.epochs is None:
        process.log("endless", reason="the job has no --train-steps: it trains until it is stopped")
    host, health = serve_health(where, security)
    process.at_exit.callback(health.stop, STOP_S)
    endpoint = process.serve_metrics("worker", where, host, security.web)

    from psruntime.graph.base import environment

    if worker.device_names == (AUTO_GPU,):
        choose_gpu(where.index if worker.local_rank is None else worker.local_rank)
    process.log("environment", **environment.prepare())
    _log_gpus(process.log)
    trainer = _Trainer(where, worker, job, process)
    trainer.began_at = retrying(
        lambda: _step_reached(client, job), where.connect_timeout_s, process.stop, client.name, process.log
    )
    trainer.build()
    trainer.check_warm_start(client)
    process.has_started()
    trainer.join(client, host, f"{host}:{health.port}")
    if endpoint:
        trainer.serve_metrics(endpoint)
    health.set_serving(True)
    process.announce("worker", where.index, trainer.address)
    return trainer


def _step_reached(client: CoordinatorClient, job: JobConfig) -> int:
    """The global step up to which the job has trained, since this start of it or before."""
    from psruntime.graph.checkpoint.listing import newest_step

    status, _ = client.get_status()
    return max(status.global_step, status.saved_step or 0, newest_step(job.checkpoint_dir) or 0)


def _log_gpus(log: Log) -> None:
    """Logs which GPUs TensorFlow sees; or why it sees none, on a machine that has some."""
    from psruntime.graph.base.gpus import gpu_count, why_no_gpu

    if count := gpu_count():
        log("gpus", count=count, visible=os.environ.get(VISIBLE, "all"))
    elif found := gpus():
        log("no_gpu", reason=f"this machine has {found[0]}, and TensorFlow sees none: {why_no_gpu()}")


def _limited_gpus(worker: WorkerConfig) -> tuple[int, ...]:
    """Limits what this process may take of each GPU, if it sees any; returns the limits, in bytes."""
    from psruntime.graph.base.gpus import gpu_count, limit_gpus

    if not worker.gpu_memory or not gpu_count():
        return ()
    limits = worker.gpu_limit.limits(smallest_memory(gpus()))
    limit_gpus(limits)
    return limits


class _Trainer:
    """A worker's training: first `build`, then `join`, then `train`."""

    def __init__(self, where: ProcessConfig, worker: WorkerConfig, job: JobConfig, process: Process) -> None:
        self._where, self._worker, self._job, self._process = where, worker, job, process
        self._progress = Progress(process.log)
        self.began_at = 0  # the global step of the job when this process began: another one reads in another order
        self._recorder: Recorder | None = None
        self._report: Callable[[], None] = lambda: None  # to the coordinator, once this worker has joined
        self._gpu_memory = OwnMemory()
        self._warm_start = self._wanted_warm_start()
        self._summaries = self._summary_writer()
        self._owner = self._folder_owner()

    def build(self) -> None:
        """Builds everything that the user's model has a part in, so that its mistakes show before this worker joins.

        model_fn is called for each of these graphs, in this order:

        1. Mode train, a scratch graph, to learn its variables; the plan is made from them.
        2. Mode train, on the parameters that a step pulls: the training graph.  With --schedule another one, if it has
           both mode sync and one of the others; otherwise that is built when an operator wants such a mode.  With a
           local stage one more.
        3. Mode eval, on pulled parameters, for the evaluation at the end (`_evaluation`).
        4. Mode eval, on variables of its own, to measure checkpoints; only with --keep-best.

        Worker 0 builds the last two as well, for what is wrong with them; another when it has to evaluate.
        """
        from psruntime.graph.input.input_stream import InputStream, require_fit
        from psruntime.graph.loop.loop_graphs import LoopGraphs
        from psruntime.graph.model.pulled_model import record_specs
        from psruntime.graph.model.slowed import slowed
        from psruntime.graph.model.towers import find_towers
        from psruntime.graph.step.plan_log import log_plan

        job = self._job
        self._gpu_limits = _limited_gpus(self._worker)
        self._model = slowed(load_model(self._worker.model), self._worker.slowdown)
        self._towers = find_towers(self._worker.device_names, max(1, len(self._gpu_limits)))
        minibatches, shares = job.local_steps * self._towers.count, job.has_shares
        self._inputs = InputStream(self._model, self._context(TRAIN), minibatches, self._data_errors(), shares)
        require_fit(job, self._inputs)
        self._specs = record_specs(self._model, self._inputs, TRAIN)  # 1
        self._plan = make_plan(self._specs, job.ps, *job.plan_sizes)
        schedule = job.mode_schedule
        self._has_local = schedule is not None and schedule.has_local
        self._graphs = LoopGraphs(self._build_graph, self._has_built, self._warm_up)
        graph = self._graphs.of(job.mode).train  # 2
        for stage in schedule.stages if schedule else ():  # a model that does not fit one of them ends here
            self._graphs.of(stage.mode)
        if self._has_local:
            self._graphs.of(LOCAL)
        self._evaluation = self._evaluation_at_the_end()
        is_first = self._where.index == 0
        if is_first:
            _ = self._evaluation.built  # 3
        self._best = self._best_checkpoint(is_first) if job.keep_best else None  # 4
        self._tensors = report(self._plan, minibatches, job.top_k is not None).tensors
        self._step_tensors = None if job.mode == "sync" else self._tensors
        log_plan(graph, job.plan == "packed", self._process.log)
        if self._worker.record:
            self._recorder = Recorder(self._worker.record, self._where.index, job, self._process.log)
            self._process.at_exit.callback(self._recorder.close)

    def check_warm_start(self, client: CoordinatorClient) -> None:
        """Raises UsageError if the job has yet to begin with a checkpoint that does not fit."""

        def has_begun() -> bool:
            status, _ = client.get_status()
            return status.phase is not Phase.FORMING or status.global_step > 0

        if self._warm_start:
            self._warm_start.check(self._graphs.of(self._job.mode).train, has_begun)

    def join(self, client: CoordinatorClient, host: str, health_address: str) -> None:
        """Starts TensorFlow's server and joins the job."""
        from psruntime.graph.base import environment
        from psruntime.graph.base.gpus import gpu_count
        from psruntime.graph.base.server import start_server
        from psruntime.graph.checkpoint.listing import newest_step
        from psruntime.graph.session.session import WorkerServer

        where, process = self._where, self._process
        if gpu_count():
            self._gpu_memory.start()
            process.at_exit.callback(self._gpu_memory.close)
        server, self.address = start_server(
            "worker", where.index, host, where.port, self._towers.cpus, self._gpu_limits
        )
        self._server = WorkerServer(where.index, server.target, self.address)
        links = WorkerLinks(self.address, self._job.link_timeout_s, process.log)
        links.start()
        process.at_exit.callback(links.close)
        self._traffic = TrafficMeter(links.counts)

        def ended(error: PsRuntimeError) -> None:
            stopped = isinstance(error, JobStoppedError)
            if not stopped and error.exit_code:
                links.give_up()
            process.end_within(AFTER_STOP_S if stopped else self._job.drain_timeout_s, error.exit_code)

        def on_answer(answer: Answer) -> None:
            links.follow(answer.instructions)
            self._graphs.prepare(answer.instructions.build, answer.instructions.build_number)
            if answer.instructions.leave:
                process.terminate()

        context = ClientContext(client, self._job, process.stop, process.log, process.asked)
        past = Past(saved_step=newest_step(self._job.checkpoint_dir))
        machine = None if gpu_count() else this_machine(environment.tensorflow_version())
        me = Registration(
            Role.WORKER, where.index, self.address, health_address, self._specs, past,
            self._graphs.of(self._job.mode).train.identity, machine, self.began_at,
        )  # fmt: skip
        self._control_plane, self._membership = join_worker(
            context, me, self._stats, where.connect_timeout_s, process.at_exit,
            on_answer=on_answer,
            on_end=ended,
            graphs=lambda: self._graphs.built,
        )  # fmt: skip
        process.at_exit.callback(self._membership.leave, LeaveKind.ASKED, "asked to stop")
        self._report = self._control_plane.report_now
        if self._owner:
            self._owner.keep(lambda: self._instructions)
        process.is_busy = lambda: self._graphs.is_building or self._graphs.keeps_sessions or self._evaluation.is_stuck

    @property
    def _instructions(self) -> Instructions:
        return self._membership.answer.instructions

    def serve_metrics(self, endpoint: Endpoint) -> None:
        """Tells of its steps there."""
        from psruntime.metrics.worker_metrics import WorkerMetrics

        control_plane = self._control_plane
        self._progress.metrics = WorkerMetrics(endpoint, self._where.index, lambda: control_plane.stats)

    def train(self) -> int:
        """Trains until the job is over; returns the exit code.  Leaves with the reason when it fails."""
        self._process.ends_in_good_order(self._job.stop_grace_s)
        if self._recorder:
            self._recorder.begin()
        try:
            self._train()
        except (JobDoneError, JobStoppedError) as error:
            self._free_folder()
            self._membership.leave(LeaveKind.OVER, str(error))
            raise
        except StopRequested:
            raise
        except PassingError as error:
            self._membership.leave(LeaveKind.ERROR, str(error))
            raise
        except UsageError as error:
            self._membership.leave(LeaveKind.USAGE, str(error))
            raise
        except JobFailedError as error:
            self._free_folder()
            self._membership.leave(LeaveKind.FATAL, str(error))  # without effect if the job has failed already
            raise
        except Exception as error:
            self._membership.leave(LeaveKind.ERROR, first_line_of(error))
            raise
        self._free_folder()
        over = self._membership.answer.instructions
        self._membership.leave(LeaveKind.OVER, f"the job is {over.phase}")
        if over.phase is Phase.STOPPED:
            raise over_error(over.phase, over.reason)
        if self._evaluation.failure:
            where = self._job.checkpoint_dir
            saved = f"saved in {where}" if where else "not saved, without --checkpoint-dir"
            raise JobFailedError(f"the job is done, and {saved}, but its evaluation failed: {self._evaluation.failure}")
        return EXIT_DONE

    def _free_folder(self) -> None:
        """The job is over, so its folder may be another's."""
        if self._owner:
            self._owner.release()

    def _train(self) -> None:
        """Trains in the job's mode, and in each in which an operator lets it go on."""
        from psruntime.graph.loop.training_loop import TrainingLoop
        from psruntime.graph.session.session import ModeChangedError
        from psruntime.graph.session.worker_run import Observers, WorkerRun

        index, log, control_plane, job = self._where.index, self._process.log, self._control_plane, self._job
        saved = self._best.offer if self._best else lambda *_: None
        recorder = self._recorder

        def add(update: SentUpdate) -> None:
            assert recorder is not None
            recorder.add(update, control_plane.mode, control_plane.bound)

        observers = Observers(
            self._progress.step, self._progress.checkpoint, saved, add if recorder else None, self._summaries
        )
        while True:
            graph = self._graphs.enter(job.mode)
            alone = self._graphs.of(LOCAL) if self._has_local else None
            run = WorkerRun(graph.train, self._inputs, control_plane, job, index, log, self._data_errors(), observers)
            try:
                TrainingLoop(run, graph, self._server, self._evaluate, alone).run()
                self._graphs.close()
                return
            except ModeChangedError:
                job = as_started_so(self._job, control_plane.mode, control_plane.bound)
                self._step_tensors = None if job.mode == "sync" else self._tensors
                log("mode", mode=job.mode, bound=job.bound)

    def _build_graph(self, mode: str) -> LoopGraph:
        """That of the steps of this mode, with any bound; or LOCAL."""
        from psruntime.graph.loop.loop_graphs import LoopGraph
        from psruntime.graph.step.build import build_training

        index, inputs, log = self._where.index, self._inputs, self._process.log
        job = as_trained_alone(self._job) if mode == LOCAL else as_started_so(self._job, mode, 0)
        train = build_training(self._model, inputs, self._plan, job, index, self._towers, self._has_local)
        if mode == LOCAL:
            return LoopGraph.around(train, job, index, lambda *_, **__: None)
        return LoopGraph.around(train, job, index, log, inputs.shards is not None, self._warm_start, self._owner)

    def _warm_up(self, graph: LoopGraph) -> None:
        view = self._membership.answer.instructions.view
        graph.sessions.warm(self._server, view, self._control_plane.is_chief())

    def _has_built(self) -> None:
        if failure := self._graphs.built.failure:
            self._process.log("cannot_build", reason=failure)
        self._report()

    def _wanted_warm_start(self) -> WarmStart | None:
        from psruntime.graph.recovery.warm_start import WarmStart

        return WarmStart(self._job, self._where.index, self._process.log) if self._job.warm_start else None

    def _folder_owner(self) -> FolderOwner | None:
        from psruntime.graph.checkpoint.owner import FolderOwner

        job, log = self._job, self._process.log
        if not job.checkpoint_dir:
            return None
        return FolderOwner(job.checkpoint_dir, job.job_id, self._where.coordinator, job.lease_s, log)

    def _summary_writer(self) -> SummaryWriter | None:
        """Writes to a run of TensorBoard: that of the job, or one of this worker."""
        from psruntime.graph.base.summary_writer import SummaryWriter

        job = self._job
        if not job.checkpoint_dir or not job.summary_steps:
            return None
        run = "" if job.summary_workers == "chief" else os.path.join("workers", str(self._where.index))
        writer = SummaryWriter(os.path.join(job.checkpoint_dir, run), self._process.log)
        self._process.at_exit.callback(writer.close)
        return writer

    def _held_out(self, global_step: int, values: dict[str, float]) -> None:
        """Adds metrics of held-out data to the summaries."""
        if self._summaries:
            self._summaries.write(global_step, {f"evaluation/{name}": value for name, value in values.items()})

    def _data_errors(self) -> DataErrors:
        """What becomes of bad batches, for one source of errors."""
        from psruntime.graph.input.data_errors import DataErrors

        return DataErrors(self._job.skips_bad_batches, self._process.log, self._progress.skip)

    def _evaluation_at_the_end(self) -> FinalEvaluation:
        from psruntime.graph.loop.final_evaluation import FinalEvaluation
        from psruntime.graph.model.evaluate import PulledEvaluation

        return FinalEvaluation(
            lambda: PulledEvaluation(self._model, self._context(EVAL), self._plan, self._job.max_workers),
            self._job.evaluation_limit_s,
            lambda doing: self._control_plane.closed_part(doing),
            lambda doing: self._control_plane.closes(doing),
            self._process.log,
        )

    def _best_checkpoint(self, check: bool) -> BestCheckpoint:
        from psruntime.graph.checkpoint.best import BestCheckpoint, require_metric
        from psruntime.graph.model.evaluate import CheckpointEvaluation
        from psruntime.graph.model.model_metrics import Measuring, logged, require_time

        job, log = self._job, self._process.log

        def on_batch(measured: Measuring) -> None:
            require_time(measured, measured.seconds, job.evaluation_limit_s)
            self._control_plane.closed_part()

        evaluation = CheckpointEvaluation(self._model, self._context(EVAL), logged(log, on_batch))
        if check:
            require_metric("keep_best", job.best_metric.name, evaluation.names)
        return BestCheckpoint(evaluation, job.checkpoint_dir, job.best_metric, log, self._held_out)

    def _stats(self, waiting: str) -> WorkerStats:
        """The measurements for the next heartbeat."""
        stats = self._progress.stats(waiting)
        return replace(stats, moved=self._traffic.moved(), step_tensors=self._step_tensors, gpus=self._gpu_memory())

    def _evaluate(self, global_step: int) -> None:
        """Measures the final variables on held-out data; prints the metrics for the user and logs them."""
        from psruntime.graph.session.session import open_session

        instructions = self._instructions
        if instructions.stopping:
            return
        if self._best:
            self._best.wait()
        values = self._evaluation.measure(
            lambda graph: open_session(self._server, graph, instructions.view), global_step
        )
        if values is None:
            return
        sys.stdout.write(f"{text_of(global_step, values)}\n")
        sys.stdout.flush()
        self._process.log("evaluation", global_step=global_step, **values)
        self._held_out(global_step, values)

    def _context(self, mode: str) -> Context:
        worker, index = self._worker, self._where.index
        seed = input_seed(worker.seed, index, self.began_at if mode == TRAIN else 0)
        size, data_dir, batches = worker.batch_size, worker.data_dir, worker.eval_batches
        return Context(mode, index, self._job.min_workers, size, data_dir, seed, batches)


if __name__ == "__main__":
    sys.exit(entry(main))
