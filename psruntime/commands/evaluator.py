"""An evaluator: measures each new checkpoint of a job on held-out data.  It is no member of the job.

psruntime evaluator [--model MODULE] [--coordinator HOST:PORT]

It reads the checkpoints' files, so the training does not wait for it, and ends without it.  The last one is always
measured: the coordinator reports the job's end before the folder is read for the last time.  With --patience it ends
the job whose metric gets no better.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from psruntime.config import JobConfig
from psruntime.config.process import EvaluatorConfig, ProcessConfig, WorkerConfig
from psruntime.core.members.view import over_error
from psruntime.core.steering.commands import Command, Kind, Outcome
from psruntime.errors import (
    EXIT_DONE,
    JobDoneError,
    JobFailedError,
    JobOverError,
    OtherJobError,
    PsRuntimeError,
    StopRequested,
    UnreachableError,
    UsageError,
)
from psruntime.model import EVAL, Context, load_model
from psruntime.network.hosts import await_names
from psruntime.observe import evaluations
from psruntime.observe.evaluations import EarlyStopping, text_of
from psruntime.observe.log import Exact, Log, take_warnings
from psruntime.process import flags
from psruntime.process.process import Process, run, usage_error
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.client.join import fetch_job
from psruntime.rpc.server.rpc_server import serve_health
from psruntime.rpc.wire.messages import ControlRequest
from psruntime.rpc.wire.security import Security, load_security

if TYPE_CHECKING:
    from psruntime.graph.checkpoint.measured import MeasuredCheckpoints
    from psruntime.observe.worker_metrics import EvaluatorMetrics

PROG = "psruntime evaluator"
ROLE = "evaluator"
LOOK_S = 1.0  # between two looks at the folder, and at the job
DRAIN_S, MARGIN_S = 2.0, 5.0  # a wait for the requested end of the job, and the margin of the call's deadline over it
STOP_S = 0.2  # for health calls in progress at the end
OF_PROCESS = ("coordinator", "host", "health_port", "metrics_port", "connect_timeout_s", "log_format", "restart_code")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until the job is over or a signal is received; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        where = ProcessConfig(index=0, **flags.given(arguments, ProcessConfig))
        worker, wanted = flags.worker_config(arguments), flags.config_of(EvaluatorConfig, arguments)
        security = load_security(flags.security_config(arguments))
    except UsageError as error:
        return usage_error(PROG, error)
    of_job = flags.given(arguments, JobConfig)
    of_job.pop("patience", None)
    work = partial(_work, where, worker, wanted, of_job, security)
    return run(Log(ROLE, 0, where.log_format), work, arguments.lifeline, where.restart_code)


def _parser() -> flags.Parser:
    parser = flags.Parser(
        PROG,
        "An evaluator: measures each new checkpoint of a job by the model's metrics, and the last one always.  It is "
        "no member of the job, which does not wait for it.",
        first=("coordinator", *flags.OF_EVALUATION, "metric", "patience", "metrics_port"),
    )
    parser.add_settings(WorkerConfig, only=flags.OF_EVALUATION, helps=flags.INPUT_SEED)
    parser.add_settings(EvaluatorConfig)
    parser.add_settings(ProcessConfig, only=OF_PROCESS)
    flags.add_lifeline_flag(parser)
    flags.add_security_flags(parser)
    parser.add_settings(JobConfig, but=("patience",), checked=True)  # it has one of its own
    return parser


def _work(
    where: ProcessConfig, worker: WorkerConfig, wanted: EvaluatorConfig, given: dict[str, Any], security: Security,
    process: Process,
) -> int:  # fmt: skip
    security.keep_current(process.log)
    await_names(where, process.stop, process.log)
    client = CoordinatorClient(where.coordinator, security)
    process.at_exit.callback(client.close)
    job = fetch_job(client, given, where.connect_timeout_s, process.stop, process.log)
    end = JobEnd(client, job, process.log)
    end.watch(process.stop)
    if not job.checkpoint_dir:
        raise UsageError("the job has no --checkpoint-dir: there are no checkpoints to measure")
    host, health = serve_health(where, security)
    process.at_exit.callback(health.stop, STOP_S)
    metrics: EvaluatorMetrics | None = None
    if endpoint := process.serve_metrics(ROLE, where, host, security.web, security.expires_s):
        from psruntime.observe.worker_metrics import EvaluatorMetrics

        metrics = EvaluatorMetrics(endpoint)

    from psruntime.graph.base import environment

    process.log("environment", **environment.prepare(hide_gpus=True))
    take_warnings(process.log, "tensorflow")
    from psruntime.graph.checkpoint.measured import FOLDER, HISTORY, BestCheckpoint, MeasuredCheckpoints, require_metric
    from psruntime.graph.model.evaluate import CheckpointEvaluation, Measuring, logged, require_time
    from psruntime.graph.model.identity import other_params

    context = Context(EVAL, 0, job.min_workers, worker.batch_size, worker.data_dir, worker.seed, worker.eval_batches)

    def on_batch(measured: Measuring) -> None:
        _go_on(process.stop)
        require_time(measured, min(measured.seconds, end.over_for_s), job.evaluation_limit_s)

    model = load_model(worker.model, worker.set)
    evaluation = CheckpointEvaluation(model, context, logged(process.log, on_batch))
    process.log("measures", metrics=", ".join(evaluation.names), checkpoints=job.checkpoint_dir)
    metric = wanted.metric_of(job.keep_best)
    if wanted.compares:
        require_metric("metric" if wanted.metric else "patience", metric.name, evaluation.names)
    keeps = wanted.compares and not job.measures  # else the chief does
    best = BestCheckpoint(evaluation, job.checkpoint_dir, metric, process.log) if keeps else None
    folder = os.path.join(job.checkpoint_dir, FOLDER)
    stopping = EarlyStopping(metric, wanted.patience, evaluations.read(os.path.join(folder, HISTORY)))
    results = Results(stopping, end.drain, os.path.join(folder, HISTORY), process.log, process.show, metrics)

    def measured(path: str, global_step: int, values: dict[str, float]) -> None:
        if reason := other_params(model, path):
            process.log("model_differs", reason=reason)
        results.measured(global_step, values)

    checkpoints = MeasuredCheckpoints(evaluation, job.checkpoint_dir, folder, measured, process.log, best)
    process.at_exit.callback(checkpoints.close)
    process.has_started()
    health.set_serving(True)
    process.announce(ROLE, 0, f"{host}:{health.port}")
    try:
        return _measure_all(checkpoints, end, job, process.stop)
    except JobDoneError:
        if end.drained:
            results.ended(checkpoints.global_step)
        raise


def _measure_all(checkpoints: MeasuredCheckpoints, end: JobEnd, job: JobConfig, stop: threading.Event) -> int:
    """Measures until the job has ended and its last checkpoint is measured."""
    while True:
        error = end.error  # before the folder is read
        if checkpoints.measure_next():
            continue
        if isinstance(error, JobDoneError):
            _require_all_measured(checkpoints, job.checkpoint_dir)
        if isinstance(error, UnreachableError) and _has_all(checkpoints, job):
            return EXIT_DONE  # the processes of the job were gone before they could answer
        if error:
            raise error
        if stop.wait(LOOK_S):
            raise StopRequested("asked to stop")


def _has_all(checkpoints: MeasuredCheckpoints, job: JobConfig) -> bool:
    """Whether the newest checkpoint is one of the end of the job, and is measured."""
    return job.train_steps is not None and checkpoints.global_step >= job.train_steps and not checkpoints.failure


def _require_all_measured(checkpoints: MeasuredCheckpoints, folder: str) -> None:
    if checkpoints.failure:
        raise JobFailedError(f"the job is done, but its evaluation failed: {checkpoints.failure}")
    if checkpoints.global_step < 0:
        raise JobFailedError(f"the job is done, but {folder} has no checkpoint here; is it the same folder everywhere?")


class Results:
    """Handles the metrics of a checkpoint: they are reported, and the job may be ended."""

    def __init__(
        self,
        stopping: EarlyStopping,
        drain: Callable[[], bool],
        path: str,
        log: Callable[..., None],
        show: Callable[..., None],
        metrics: EvaluatorMetrics | None = None,
    ) -> None:
        """drain: ends the job; returns False if it ends anyway.  path: of the file to which the stop is written.

        show: as Process.show.
        """
        self._stopping, self._drain, self._path, self._log = stopping, drain, path, log
        self._show, self._metrics = show, metrics

    def measured(self, global_step: int, values: dict[str, float]) -> None:
        """Prints the metrics for the user, as worker 0 does at the end, and logs them."""
        self._show("held_out", text_of(global_step, values), global_step=global_step, **values)
        self._log("evaluation", global_step=global_step, **{name: Exact(value) for name, value in values.items()})
        if self._metrics:
            self._metrics.measured(global_step, values)
        self._stopping.add(global_step, values)
        if (reason := self._stopping.reason) and self._drain():
            self._log("stops_early", reason=reason)

    def ended(self, global_step: int) -> None:
        """Writes the stop: the job has ended for its metric, and its last checkpoint, of this step, is measured."""
        with suppress(OSError):  # where only TensorFlow writes, as to gs://, a new evaluator starts to count from 0
            evaluations.append_stop(self._path, global_step, time.time(), self._stopping.reason)


def _go_on(stop: threading.Event) -> None:
    if stop.is_set():
        raise StopRequested("asked to stop")


class JobEnd:
    """Asks the coordinator in a thread of its own whether the job has ended, and ends the job on demand.

    error: for a job that is over, another job in its place, or a coordinator that was silent for `ps_timeout_s`; None
        before.
    """

    def __init__(
        self,
        client: CoordinatorClient,
        job: JobConfig,
        log: Callable[..., None],
        time_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.error: PsRuntimeError | None = None
        self._client, self._log = client, log
        self._command: Command | None = None  # by which the job is to end
        self._is_pending = False  # whether the coordinator has accepted it
        self.drained = False  # whether the job has ended by it
        self._job_id = job.job_id
        self._timeout_s = job.ps_timeout_s
        self._time_s = time_s
        self._answered_s = time_s()  # the last time that the coordinator answered

    @property
    def over_for_s(self) -> float:
        """Seconds since the report that the job is over; 0 before."""
        return self._time_s() - self._answered_s if self.error else 0.0

    def watch(self, stop: threading.Event) -> None:
        """Starts to ask, until the end or `stop`."""
        threading.Thread(target=self._watch, args=(stop,), name="job end", daemon=True).start()

    def drain(self) -> bool:
        """Ends the job, as `psruntime control drain` does; returns False if that was requested, or it has ended.

        The request is repeated while the coordinator does not answer.
        """
        if self._command is not None or self.error is not None:
            return False
        self._command = Command(Kind.DRAIN, secrets.token_hex(16))
        return True

    def ask(self) -> None:
        """Asks once; if the job is to end, the call waits for that, since its processes are gone soon afterwards."""
        self._is_pending = False
        try:
            status, job = self._client.get_status(watches=True)
        except PsRuntimeError as error:
            if self._time_s() - self._answered_s >= self._timeout_s:
                name = self._client.name
                self.error = UnreachableError(
                    f"{name} was not reached for {self._timeout_s:g} s; is ps 0 running there? (--ps-timeout): {error}"
                )
            return
        self._answered_s = self._time_s()
        if job.job_id != self._job_id:
            self.error = OtherJobError(f"{self._client.name} serves job {job.job_id} now, and not {self._job_id}")
        elif status.phase.over:
            self.error = over_error(status.phase, status.reason)
        elif self._command:
            self._end(self._command)

    def _end(self, command: Command) -> None:
        """Sends the command, or asks for its outcome.  A refused one may be sent again."""
        try:
            reply = self._client.control(ControlRequest(command, DRAIN_S), DRAIN_S + MARGIN_S)
        except UnreachableError:
            return  # it is asked again; `ask` limits how long it may be silent
        except (JobOverError, JobFailedError) as error:
            self.error = error
            return
        except PsRuntimeError as error:
            self._refused(str(error))
            return
        self._is_pending = reply.outcome is Outcome.PENDING
        if reply.outcome is Outcome.DONE:
            self.drained, self.error = True, JobDoneError(reply.text)
            with suppress(PsRuntimeError):
                self._client.get_status(watches=True)  # ps 0 ends once this evaluator has the report of the end
        elif reply.outcome is Outcome.GIVEN_UP:
            self._refused(reply.text)

    def _refused(self, reason: str) -> None:
        self._command = None
        self._log("not_drained", reason=reason)

    def _watch(self, stop: threading.Event) -> None:
        while self.error is None and not stop.wait(0.0 if self._is_pending else LOOK_S):
            self.ask()
