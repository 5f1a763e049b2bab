"""A worker: draws batches, pulls, computes, pushes.

python -m psruntime.worker --index N [--model MODULE] [--coordinator HOST:PORT]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from psruntime import flags
from psruntime.config import JobConfig, ProcessConfig, WorkerConfig
from psruntime.core.members.messages import LeaveKind, WorkerStats
from psruntime.core.plan.plan import make_plan
from psruntime.core.plan.plan_report import report
from psruntime.errors import EXIT_DONE, JobDoneError, JobFailedError, StopRequested, UsageError, UserCodeError
from psruntime.graph.base import allocator
from psruntime.model import EVAL, TRAIN, Context, load_model
from psruntime.network import own_host
from psruntime.observe.log import Log, first_line_of
from psruntime.observe.meter import StepMeter
from psruntime.observe.traffic import Peers, Traffic
from psruntime.process import Process, run, usage_error
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.client.job_settings import learn_job
from psruntime.rpc.security.credentials import Security, load_security
from psruntime.rpc.server.rpc_server import RpcServer
from psruntime.rpc.worker.join_worker import take_worker_seat

if TYPE_CHECKING:
    from psruntime.graph.checkpoint.best import BestCheckpoint
    from psruntime.graph.loop.push_steps import StepResult

PROG = "psruntime worker"
STOP_S = 0.2  # for health calls under way at the end; a process that is asked to end has 5 s in all
PROGRESS_S = 10.0  # between two progress lines in the log
STARTED = 3  # steps, after which nothing is built any more


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until the job is over or a signal comes; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        where, worker = flags.process_config(arguments), flags.worker_config(arguments)
        security = load_security(flags.security_config(arguments))
    except UsageError as error:
        return usage_error(PROG, error)
    allocator.share_arenas()
    work = partial(_work, where, worker, flags.given(arguments, JobConfig), security)
    return run(Log("worker", where.index, where.log_format), work, arguments.lifeline)


def _parser() -> flags.Parser:
    parser = flags.Parser(
        PROG,
        "A worker: trains the job's model.  It learns the job's settings from the coordinator; a flag that contradicts "
        "one of them is refused.",
        first=("index", "coordinator", "model", "data_dir", "batch_size"),
    )
    parser.add_settings(WorkerConfig)
    flags.add_process_flags(parser)
    parser.add_settings(JobConfig)
    return parser


def _work(
    where: ProcessConfig, worker: WorkerConfig, given: dict[str, Any], security: Security, process: Process
) -> int:
    client = CoordinatorClient(where.coordinator, security)
    process.at_exit.callback(client.close)
    job = learn_job(client, given, where.connect_timeout_s, process.stop, process.log)
    if job.train_steps is None:
        process.log("endless", reason="the job has no --train-steps: it trains until it is stopped")
    host = own_host(where)
    health = RpcServer(f"{host}:{where.health_port}", flag="--health-port", security=security)
    health.start()
    process.at_exit.callback(health.stop, STOP_S)

    from psruntime.graph.base import environment

    process.log("environment", **environment.prepare(job.ping_timeout_s))
    trainer = _Trainer(where, worker, job, process)
    trainer.join(client, host, f"{host}:{health.port}")
    health.set_serving(True)
    process.announce("worker", where.index, trainer.address)
    return trainer.train()


class _Trainer:
    """Puts the pieces of a worker together, in the order in which they can fail."""

    def __init__(self, where: ProcessConfig, worker: WorkerConfig, job: JobConfig, process: Process) -> None:
        from psruntime.graph.base.data_errors import DataErrors
        from psruntime.graph.input.input_stream import InputStream
        from psruntime.graph.model.evaluate import check_evaluation
        from psruntime.graph.model.pulled_model import learn_specs
        from psruntime.graph.step.train_graph import build_training

        self._where, self._worker, self._job, self._process = where, worker, job, process
        self._meter = StepMeter()
        self._to_start = STARTED
        self._model = load_model(worker.model)
        input_errors = DataErrors(job.on_data_error == "skip", process.log, self._meter.skip)
        self._inputs = InputStream(self._model, self._context(TRAIN), job.local_steps, input_errors)
        self._specs = learn_specs(self._model, self._inputs, TRAIN)
        self._plan = make_plan(self._specs, job.ps, job.slice_bytes, job.pack_bytes)
        check_evaluation(self._model, self._context(EVAL), self._plan)
        self._best = self._best_checkpoint()
        self._graph = build_training(self._model, self._inputs, self._plan, job, where.index)
        self._step_tensors = None if job.mode == "sync" else report(self._plan, job.local_steps).tensors
        process.log("plan", variables=len(self._plan.trained), buckets=len(self._plan.buckets))
        alone = [spec.name for spec in self._plan.trained if spec.whole]
        if alone and job.plan == "packed":
            process.log(
                "unpacked", variables=" ".join(alone), reason="each has a constraint, or an optimizer that may need "
                "all of it: it is not one of those of TensorFlow that treat every entry alike",
            )  # fmt: skip
        if self._graph.untrained:
            process.log(
                "untrained", variables=" ".join(self._graph.untrained), reason="the loss does not depend on them"
            )
        if self._graph.unmoved:
            process.log(
                "unmoved", variables=" ".join(self._graph.unmoved),
                reason="no step runs their updates; give them in ModelSpec.updates, for example layer.updates",
            )  # fmt: skip
        self._progress_at_s = time.monotonic()
        self._evaluation_error = ""

    def join(self, client: CoordinatorClient, host: str, health_address: str) -> None:
        """Starts TensorFlow's server and takes this worker's seat."""
        from psruntime.graph.base.server import start_server

        where, process = self._where, self._process
        self._server, self.address = start_server("worker", where.index, host, where.port)
        peers = Peers(self.address)
        self._traffic = Traffic(peers)
        self._place, self._seat = take_worker_seat(
            client, self._job, where.index, (self.address, health_address), self._specs,
            self._stats, where.connect_timeout_s, process.stop, process.log, process.at_exit,
            on_answer=lambda answer: peers.meet(answer.standing.view),
            on_end=lambda error: process.end_within(self._job.drain_timeout_s, error.exit_code),
        )  # fmt: skip
        process.at_exit.callback(self._seat.leave, LeaveKind.ASKED, "asked to stop")

    def train(self) -> int:
        """Until the job is over; returns the exit code.  Leaves with the reason when it fails."""
        try:
            self._build_loop().run()
        except JobDoneError:
            self._seat.leave(LeaveKind.OVER, "the job is done")
            raise
        except StopRequested:
            raise
        except JobFailedError as error:
            self._seat.leave(LeaveKind.FATAL, str(error))  # or the job has failed already, then it tells nothing new
            raise
        except Exception as error:
            self._seat.leave(LeaveKind.ERROR, first_line_of(error))
            raise
        self._seat.leave(LeaveKind.OVER, "the job is done")
        if self._evaluation_error:
            raise JobFailedError(f"the job is done, but its evaluation failed: {self._evaluation_error}")
        return EXIT_DONE

    def _stats(self, waiting: str) -> WorkerStats:
        """For the next heartbeat."""
        stats = self._meter.stats(time.monotonic(), waiting)
        return replace(stats, moved=self._traffic.moved(), step_tensors=self._step_tensors)

    def _build_loop(self) -> Any:
        from psruntime.graph.loop.assemble import assemble

        return assemble(
            self._graph, self._inputs, self._job, self._where.index, self._place,
            server=(self._server.target, self.address), on_step=self._on_step, close=self._evaluate,
            log=self._process.log, saved=self._best.offer if self._best else None,
            on_skip=self._meter.skip,
        )  # fmt: skip

    def _best_checkpoint(self) -> BestCheckpoint | None:
        if not self._job.keep_best:
            return None
        from psruntime.graph.checkpoint.best import BestCheckpoint
        from psruntime.graph.model.evaluate import CheckpointEvaluation

        name, _ = self._job.best_metric
        evaluation = CheckpointEvaluation(self._model, self._context(EVAL), lambda: self._place.closed_part())
        if name not in evaluation.names:
            raise UsageError(f"keep_best names {name}, which {self._worker.model} does not measure; "
                             f"it has {', '.join(evaluation.names)}")  # fmt: skip
        return BestCheckpoint(evaluation, self._job.checkpoint_dir, self._job.best_metric, self._process.log)

    def _on_step(self, result: StepResult) -> None:
        self._to_start -= 1
        if self._to_start == 0:
            allocator.give_back()
        now_s = time.monotonic()
        self._meter.step(result.loss, result.examples, result.staleness, result.dropped, now_s)
        if now_s - self._progress_at_s >= PROGRESS_S:
            self._progress_at_s = now_s
            stats = self._meter.stats(now_s)
            self._process.log(
                "progress", global_step=result.global_step, loss=result.loss, examples_per_s=stats.examples_per_s,
                staleness_p99=stats.staleness_p99, dropped=self._meter.dropped,
            )  # fmt: skip

    def _evaluate(self, global_step: int) -> None:
        """Held-out metrics of the final variables, printed for the user and logged."""
        from psruntime.graph.loop.session import open_session
        from psruntime.graph.model.evaluate import evaluate

        if self._best:
            self._best.wait()

        view = self._seat.answer.standing.view
        worker = (self._where.index, self.address)
        try:
            values = evaluate(
                self._model, self._context(EVAL), self._plan, self._job.max_workers,
                lambda graph: open_session(self._server.target, graph, view, worker),
                self._place.closed_part,
            )  # fmt: skip
        except (UsageError, UserCodeError) as error:  # the training is complete and saved: this is not its failure
            self._evaluation_error = str(error)
            return
        text = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
        sys.stdout.write(f"held out, at global step {global_step}: {text}\n")
        sys.stdout.flush()
        self._process.log("evaluation", global_step=global_step, **values)

    def _context(self, mode: str) -> Context:
        worker, index = self._worker, self._where.index
        return Context(mode, index, self._job.min_workers, worker.batch_size, worker.data_dir, worker.seed + index)


if __name__ == "__main__":
    sys.exit(main())
