"""A parameter server; index 0 hosts the coordinator too.

python -m psruntime.ps --index 0 [job settings]
python -m psruntime.ps --index 1 --coordinator HOST:PORT

What comes before TensorFlow is imported is here; the work with it is in ps_member.py.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from psruntime.config import JobConfig
from psruntime.config.process import ProcessConfig, split_address
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.members.messages import LeaveKind
from psruntime.core.members.view import Phase, over_error
from psruntime.core.rounds.sync_rounds import Record
from psruntime.errors import EXIT_DONE, PsRuntimeError, StopRequested, UnreachableError, UsageError, some
from psruntime.graph.base import environment
from psruntime.network.hosts import await_names, own_host, require_loopback
from psruntime.observe.log import Log, take_warnings
from psruntime.observe.outputs import entry
from psruntime.observe.rounds_log import RoundsLog
from psruntime.process import flags
from psruntime.process.process import Process, run, usage_error
from psruntime.rpc.client.coordinator_client import ClientContext, CoordinatorClient
from psruntime.rpc.client.join import fetch_job
from psruntime.rpc.server.rpc_server import RpcServer, serve_health
from psruntime.rpc.server.servicer import CoordinationServicer
from psruntime.rpc.wire.security import Security, load_security

if TYPE_CHECKING:
    from psruntime.ps_member import PsMember

PROG = "psruntime ps"
LOOK_S = 0.05  # how often the last process looks whether the others are gone
TELL_AFTER_S = 1.0  # a wait shorter than this is not worth a line in the log
NAMED = 10  # members that a line names
STOP_S = 0.2  # for calls under way when the server stops; a process that has to end now has 5 s in all


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until the job is over or a signal comes; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        where = flags.process_config(arguments)
        given = flags.job_settings(arguments)
        job = JobConfig(**given) if where.index == 0 else None
        security = load_security(flags.security_config(arguments))
        open_to_all = bool(security.tls) or security.insecure
        if job and not open_to_all:
            require_loopback(where.coordinator)
    except UsageError as error:
        return usage_error(PROG, error)
    environment.share_arenas()
    environment.keep_freed_memory()
    work = partial(_work, where, job, given, security, open_to_all)
    return run(Log("ps", where.index, where.log_format), work, arguments.lifeline, where.restart_code)


def _parser() -> flags.Parser:
    parser = flags.Parser(
        PROG,
        "A parameter server.  Index 0 hosts the coordinator and is given the job's settings; the others learn them "
        "from it, and a flag or a job file that contradicts one of them is refused.",
        first=(
            "index", "coordinator", "host", "log_format", "ps", "min_workers", "mode", "bound", "train_steps",
            "checkpoint_dir", "save_steps", "job", "insecure",
        ),
    )  # fmt: skip
    flags.add_process_flags(parser)
    flags.add_security_flags(parser, serves_job=True)
    flags.add_job_file_flag(parser)
    parser.add_settings(JobConfig)
    return parser


def _work(
    where: ProcessConfig,
    job: JobConfig | None,
    given: dict[str, Any],
    security: Security,
    open_to_all: bool,
    process: Process,
) -> int:
    """job: that of ps 0, which hosts the coordinator; the others have None.  open_to_all: whether the coordinator may
    serve other machines.
    """
    security.keep_current(process.log)
    await_names(where, process.stop, process.log)
    server, coordinator = _serving(where, job, security, open_to_all, process)
    process.at_exit.callback(server.stop, STOP_S)
    client = CoordinatorClient(coordinator, security)
    process.at_exit.callback(client.close)
    job = fetch_job(client, given, where.connect_timeout_s, process.stop, process.log)
    ps = _joined(where, job, client, server, security, process)
    try:
        over = ps.serve()
    except StopRequested:
        raise
    except PsRuntimeError as error:
        ps.membership.leave(LeaveKind.ERROR, str(error))
        raise
    if where.index == 0:
        _linger(job, client, process)
    if over.phase is not Phase.DONE:
        raise over_error(over.phase, over.reason)
    return EXIT_DONE


def _serving(
    where: ProcessConfig, job: JobConfig | None, security: Security, open_to_all: bool, process: Process
) -> tuple[RpcServer, str]:
    """(the server of this process, the coordinator's address)."""
    if job is None:
        return serve_health(where, security)[1], where.coordinator
    if not open_to_all:
        require_loopback(where.coordinator)
    service = partial(_servicer, job, process, _recorder(job, process))
    server = RpcServer(where.coordinator, service, "--coordinator", security, process.log)
    host, _ = split_address(where.coordinator)
    address = f"{host}:{server.start()}"
    process.log("serving", coordinator=address, tls=bool(security.tls), token=bool(security.tokens))
    process.announce("coordinator", 0, address)
    return server, address


def _joined(
    where: ProcessConfig, job: JobConfig, client: CoordinatorClient, server: RpcServer, security: Security,
    process: Process,
) -> PsMember:  # fmt: skip
    """A ps that is a member of the job."""
    host = own_host(where)
    endpoint = process.serve_metrics("ps", where, host, security.web, security.expires_s)
    os.environ.pop("TF_DETERMINISTIC_OPS", None)  # a ps computes the same without it, and reads TensorFlow's clock
    process.log("environment", **environment.prepare(hide_gpus=True))
    take_warnings(process.log, "tensorflow")
    from psruntime.ps_member import PsMember  # imports TensorFlow, for which the environment is set now

    context = ClientContext(client, job, process.stop, process.log)
    ps = PsMember(where, context, process, host, f"{host}:{server.port}")
    if endpoint:
        from psruntime.observe.metrics import of_job, of_ps  # and prometheus_client, for --metrics-port alone

        endpoint.add(of_ps(where.index, ps.stats))
        if where.index == 0:
            endpoint.add(of_job(lambda: client.get_status()[0], job))
    ps.membership.start(where.connect_timeout_s)
    process.at_exit.callback(ps.membership.leave, LeaveKind.ASKED, "asked to stop")
    process.has_started()
    server.set_serving(True)
    process.announce("ps", where.index, ps.address)
    return ps


def _servicer(job: JobConfig, process: Process, record: Callable[[Record], None]) -> CoordinationServicer:
    return CoordinationServicer(
        lambda now_s: Coordinator(job, now_s), job, process.log, record=record, is_hurried=process.asked.is_set
    )


def _recorder(job: JobConfig, process: Process) -> Callable[[Record], None]:
    if not job.rounds_log:
        return lambda _: None
    rounds_log = RoundsLog(job.rounds_log, process.log)
    process.at_exit.callback(rounds_log.close)
    return rounds_log.write


def _linger(job: JobConfig, client: CoordinatorClient, process: Process) -> None:
    """Lets every member hear that the job is over, and latecomers for a while after that."""
    try:
        await_empty(client, 2 * job.lease_s, process.stop, process.log)
    except UnreachableError as error:
        process.log("unreachable", reason=error)
    if job.linger_s and not process.asked.is_set():
        process.log("lingering", seconds=job.linger_s, reason="to tell latecomers that the job is over")
        process.asked.wait(job.linger_s)


def await_empty(client: CoordinatorClient, within_s: float, stop: threading.Event, log: Callable[..., None]) -> None:
    """Members leave, or lose their leases; one that is stuck and still sends heartbeats is left behind, and named.

    Raises:
        UnreachableError: the coordinator does not answer.
    """
    began_s, is_logged = time.monotonic(), False
    while members := client.get_status()[0].members:
        waited_s = time.monotonic() - began_s
        names = some([f"{m.role} {m.index}" for m in members], NAMED)
        if waited_s >= within_s:
            log("left_behind", members=names, reason=f"the job has been over for {within_s:g} s")
            return
        if waited_s >= TELL_AFTER_S and not is_logged:
            log("waiting", reason=f"{names} to leave")
            is_logged = True
        if stop.wait(LOOK_S):
            return


if __name__ == "__main__":
    sys.exit(entry(main))
