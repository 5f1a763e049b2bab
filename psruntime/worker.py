"""A worker: draws batches, pulls, computes, pushes.

python -m psruntime.worker --index N [--model MODULE] [--coordinator HOST:PORT]

What comes before TensorFlow is imported is here; the work with it is in training.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from psruntime.config import JobConfig
from psruntime.config.process import AUTO_GPU, ProcessConfig, WorkerConfig
from psruntime.core.members.view import Phase
from psruntime.errors import UsageError
from psruntime.graph.base import environment
from psruntime.network.hosts import await_names
from psruntime.observe.log import Log, take_warnings
from psruntime.observe.outputs import entry
from psruntime.process import flags
from psruntime.process.machine import choose_gpu
from psruntime.process.process import Process, run, usage_error
from psruntime.rpc.client.coordinator_client import ClientContext, CoordinatorClient
from psruntime.rpc.client.join import end_reported, fetch_job, report_usage, retrying
from psruntime.rpc.server.rpc_server import serve_health
from psruntime.rpc.wire.security import Security, load_security

if TYPE_CHECKING:
    from psruntime.training import Training

PROG = "psruntime worker"
STOP_S = 0.2  # for health calls under way at the end; a process that has to end now has 5 s in all


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
    environment.share_arenas()
    work = partial(_work, where, worker, flags.given(arguments, JobConfig), security)
    return run(Log("worker", where.index, where.log_format), work, arguments.lifeline, where.restart_code)


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
    flags.add_security_flags(parser)
    parser.add_settings(JobConfig, checked=True)
    return parser


def _report_usage(words: Sequence[str], reason: str) -> None:
    """Reports to the coordinator that this worker's flags are wrong, if they say which it is and which worker."""
    parser = flags.LenientParser()
    parser.add_settings(ProcessConfig, only=("index", "coordinator"))
    flags.add_security_flags(parser)
    with suppress(UsageError):
        arguments, _ = parser.parse_known_args(words)
        where = flags.process_config(arguments)
        if "coordinator" not in flags.given(arguments, ProcessConfig):
            return  # what listens at the default address may be another job
        report_usage(where.coordinator, load_security(flags.security_config(arguments)), where.index, reason)


def _work(
    where: ProcessConfig, worker: WorkerConfig, given: dict[str, Any], security: Security, process: Process
) -> int:
    security.keep_current(process.log)
    await_names(where, process.stop, process.log)
    client = CoordinatorClient(where.coordinator, security)
    process.at_exit.callback(client.close)
    with end_reported(client, where.index):
        training = _joined(client, where, worker, given, security, process)
    return training.run()


def _joined(
    client: CoordinatorClient, where: ProcessConfig, worker: WorkerConfig, given: dict[str, Any], security: Security,
    process: Process,
) -> Training:  # fmt: skip
    """The training of a worker that is a member of the job."""
    job = fetch_job(client, given, where.connect_timeout_s, process.stop, process.log, where.index)
    if job.train_steps is None and job.epochs is None:
        process.log("endless", reason="the job has no --train-steps: it trains until it is stopped")
    host, health = serve_health(where, security)
    process.at_exit.callback(health.stop, STOP_S)
    endpoint = process.serve_metrics("worker", where, host, security.web, security.expires_s)

    if worker.device_names == (AUTO_GPU,):
        choose_gpu(where.index if worker.local_rank is None else worker.local_rank)
    process.log("environment", **environment.prepare())
    take_warnings(process.log, "tensorflow")
    # These import TensorFlow, for which the environment is set now.
    from psruntime.graph.base.server import log_gpus
    from psruntime.graph.loop.built import Built
    from psruntime.training import Joined, Training, step_reached

    log_gpus(process.log)
    began_at = retrying(
        lambda: step_reached(client, job), where.connect_timeout_s, process.stop, client.name, process.log
    )
    built = Built(where, worker, job, began_at, process.log, process.at_exit)
    built.check_warm_start(lambda: _has_begun(client))
    process.has_started()
    context = ClientContext(client, job, process.stop, process.log, process.asked)
    joined = Joined(built, context, process, host, f"{host}:{health.port}")
    training = Training(joined, endpoint)
    health.set_serving(True)
    process.announce("worker", where.index, joined.server.address)
    return training


def _has_begun(client: CoordinatorClient) -> bool:
    status, _ = client.get_status()
    return status.phase is not Phase.FORMING or status.global_step > 0


if __name__ == "__main__":
    sys.exit(entry(main))
