"""A parameter server: TensorFlow's server, its fence and its ledgers; index 0 hosts the coordinator too.

python -m psruntime.ps --index 0 [job settings]
python -m psruntime.ps --index 1 --coordinator HOST:PORT
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from psruntime.config import JobConfig
from psruntime.config.process import ProcessConfig, split_address
from psruntime.core.accounting.ledger import ledger_facts
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, LeaveKind, PsBeat, PsStats
from psruntime.core.members.past import Past
from psruntime.core.members.view import Phase, over_error
from psruntime.core.plan.plan import make_plan
from psruntime.core.recovery.session_cleanup import SessionCleanup
from psruntime.core.rounds.sync_rounds import Record
from psruntime.errors import EXIT_DONE, PsRuntimeError, ReplacedError, StopRequested, UnreachableError, UsageError, some
from psruntime.graph.base import allocator
from psruntime.network.connections import all_but
from psruntime.network.hosts import await_names, own_host, require_loopback
from psruntime.network.links import Links
from psruntime.observe.log import Log
from psruntime.observe.outputs import entry
from psruntime.observe.rounds_log import RoundsLog
from psruntime.observe.traffic import TrafficMeter
from psruntime.process import flags
from psruntime.process.machine import this_machine
from psruntime.process.process import Process, run, usage_error
from psruntime.rpc.client.context import ClientContext
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.client.job_settings import fetch_job
from psruntime.rpc.client.join import Registration
from psruntime.rpc.client.membership_client import MembershipClient
from psruntime.rpc.security.credentials import Security, load_security
from psruntime.rpc.server.rpc_server import RpcServer, serve_health
from psruntime.rpc.server.servicer import CoordinationServicer

PROG = "psruntime ps"
SERVE_S = 0.3  # how often a ps that serves looks whether it was asked to stop
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
        open_to_all = bool(security.tls) or arguments.insecure
        if job and not open_to_all:
            require_loopback(where.coordinator)
    except UsageError as error:
        return usage_error(PROG, error)
    allocator.share_arenas()
    allocator.keep_freed_memory()
    work = partial(_work, where, job, given, security, open_to_all)
    return run(Log("ps", where.index, where.log_format), work, arguments.lifeline)


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
    flags.add_insecure_flag(parser)
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
    """open_to_all: whether the coordinator, if this is ps 0, may serve other machines."""
    await_names(where, process.stop, process.log)
    coordinator_address = where.coordinator
    if job is not None:
        if not open_to_all:
            require_loopback(where.coordinator)
        service = partial(_servicer, job, process, _recorder(job, process))
        server = RpcServer(where.coordinator, service, "--coordinator", security, process.log)
        host, _ = split_address(where.coordinator)
        coordinator_address = f"{host}:{server.start()}"
        process.log("serving", coordinator=coordinator_address, tls=bool(security.tls), token=bool(security.token))
        process.announce("coordinator", 0, coordinator_address)
    else:
        _, server = serve_health(where, security)
    process.at_exit.callback(server.stop, STOP_S)
    client = CoordinatorClient(coordinator_address, security)
    process.at_exit.callback(client.close)
    job = fetch_job(client, given, where.connect_timeout_s, process.stop, process.log)
    host = own_host(where)
    endpoint = process.serve_metrics("ps", where, host, security.web)
    ps = _Ps(where, job, client, host, f"{host}:{server.port}", process)
    if endpoint:
        from psruntime.metrics.job_metrics import of_job
        from psruntime.metrics.ps_metrics import of_ps

        endpoint.add(of_ps(where.index, ps.stats))
        if where.index == 0:
            endpoint.add(of_job(lambda: client.get_status()[0], job))
    ps.start()
    process.at_exit.callback(ps.membership.leave, LeaveKind.ASKED, "asked to stop")
    process.has_started()
    server.set_serving(True)
    process.announce("ps", where.index, ps.address)
    try:
        return ps.serve()
    except PsRuntimeError as error:
        if not isinstance(error, StopRequested):
            ps.membership.leave(LeaveKind.ERROR, str(error))
        raise


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


class _Ps:
    """The ps's side of the conversation: what it hears becomes fence, what it holds becomes heartbeat."""

    def __init__(
        self, where: ProcessConfig, job: JobConfig, client: CoordinatorClient, host: str, health: str, process: Process
    ) -> None:
        from psruntime.graph.base import environment

        os.environ.pop("TF_DETERMINISTIC_OPS", None)  # a ps computes the same without it, and reads TensorFlow's clock
        process.log("environment", **environment.prepare(hide_gpus=True))
        from psruntime.graph.base.server import start_server
        from psruntime.graph.checkpoint.listing import newest_step
        from psruntime.graph.ps.ps_state import PsState

        self._job = job
        self._index = where.index
        self._client = client
        self._process = process
        self._server, self.address = start_server("ps", where.index, host, where.port)
        self._state = PsState(self._server.target, where.index, job.max_workers)
        self._fence_revision = 0
        self._written: object = None  # the fence that is in force, and of which incarnation
        self._stats = PsStats()  # as the last heartbeat has it
        self._view = 0  # the prepared view, 0 while there is none
        self._has_model = False  # whose buckets are here; a script has none
        self._cleanup = SessionCleanup(job.lease_s)
        data_plane = all_but((client.address, health))
        self._traffic = TrafficMeter(data_plane)
        links = Links(data_plane, job.link_timeout_s, process.log)
        links.start()
        process.at_exit.callback(links.close)
        self._beating = threading.Lock()
        context = ClientContext(client, job, process.stop, process.log)
        past = Past(saved_step=newest_step(job.checkpoint_dir))
        machine = this_machine(environment.tensorflow_version())
        me = Registration(Role.PS, where.index, self.address, health, past=past, machine=machine)
        self.membership = MembershipClient(context, me, self._beat, self._receive)
        self._connect_timeout_s = where.connect_timeout_s

    def stats(self) -> PsStats:
        """What it said last."""
        return self._stats

    def start(self) -> None:
        self.membership.start(self._connect_timeout_s)

    def serve(self) -> int:
        """Until the job is over, or this ps may leave it; returns the exit code."""
        self._process.ends_in_good_order(self._job.stop_grace_s)
        while (answer := self.membership.wait_until(lambda a: a.instructions.phase.over, SERVE_S)) is None:
            if self._process.asked.is_set() and self._may_leave():
                raise StopRequested("asked to stop")
        instructions = answer.instructions
        self._log_ledger()
        self._report_counts()
        self.membership.leave(LeaveKind.OVER, f"the job is {instructions.phase}")
        if self._index == 0:
            self._linger()
        if instructions.phase is not Phase.DONE:
            raise over_error(instructions.phase, instructions.reason)
        return EXIT_DONE

    def _may_leave(self) -> bool:
        """Says that this process was asked to stop; the coordinator knows what would be lost with it."""
        try:
            return self.membership.beat_now().instructions.leave
        except ReplacedError:
            return True
        except UnreachableError:
            return False

    def _receive(self, answer: Answer) -> None:
        instructions = answer.instructions
        scale = instructions.settings.learning_rate_scale
        fence = (answer.incarnation, instructions.fence_revision, instructions.max_staleness, scale)
        if fence != self._written:
            self._state.write_fence(dict(instructions.admitted), instructions.max_staleness, scale)
            self._fence_revision, self._written = instructions.fence_revision, fence
            self._cleanup.update([worker for worker, _ in instructions.admitted], time.monotonic())
        if not instructions.phase.over:  # what was counted last stays what this ps says
            self._view = instructions.view.number if instructions.phase.prepared else 0

    def _beat(self, _incarnation: int) -> PsBeat:
        """What this ps says; the last word comes from another thread than the heartbeats."""
        with self._beating:
            beat = self._next_beat()
            if beat.view:
                self._stats = beat.stats
            else:  # nothing is read then, and what was counted stays what this ps says
                self._stats = replace(self._stats, moved=beat.stats.moved)
            return replace(beat, asked_to_stop=self._process.asked.is_set())

    def _next_beat(self) -> PsBeat:
        worker = self._cleanup.take_overdue(time.monotonic())
        if worker is not None:
            failure = self._state.clear_session(worker)
            self._process.log("session_cleared", worker=worker, **({"failure": failure} if failure else {}))
        if self._view and not self._has_model:
            self._fetch_model()
        if not self._view or not self._has_model:
            return PsBeat(self._fence_revision, stats=PsStats(moved=self._traffic.moved()))
        stats, global_step = self._state.read()
        return PsBeat(self._fence_revision, self._view, global_step, replace(stats, moved=self._traffic.moved()))

    def _fetch_model(self) -> None:
        """Asks for the model; without an answer the next heartbeat asks again.

        Workers that run a script of their own tell no variables: there is no ledger then, and they report the
        global step.
        """
        try:
            specs = self._client.get_model()
        except UnreachableError:
            return
        self._has_model = specs is not None
        if specs:
            self._state.set_plan(make_plan(specs, self._job.ps, *self._job.plan_sizes))

    def _log_ledger(self) -> None:
        """The account of all updates, once at the end."""
        if not self._state.has_plan:
            return
        stats, _ = self._state.read()
        unbalanced = self._state.unbalanced()
        accepted = ", ".join(f"worker {i}: {low} to {high}" for i, (low, high) in self._state.accepted().items())
        self._process.log(
            "ledger", buckets=stats.buckets, **ledger_facts(stats), max_staleness=stats.max_staleness,
            accepted=accepted, balanced=not unbalanced,
        )  # fmt: skip
        for counts in stats.row_counts:
            self._process.log("dynamic_table", **asdict(counts), known=counts.known)
        if unbalanced:
            self._process.log(
                "unbalanced", buckets=" ".join(unbalanced), reason="received is not applied + dropped + rolled back"
            )

    def _report_counts(self) -> None:
        """The last heartbeat: nothing is pushed any more."""
        try:
            self.membership.beat_now()
        except (ReplacedError, UnreachableError) as error:
            self._process.log("report_failed", reason=error)

    def _linger(self) -> None:
        """Lets every member hear that the job is over, and latecomers for a while after that."""
        try:
            await_empty(self._client, 2 * self._job.lease_s, self._process.stop, self._process.log)
        except UnreachableError as error:
            self._process.log("unreachable", reason=error)
        if self._job.linger_s and not self._process.asked.is_set():
            self._process.log("lingering", seconds=self._job.linger_s, reason="to tell latecomers that the job is over")
            self._process.asked.wait(self._job.linger_s)


def await_empty(client: CoordinatorClient, within_s: float, stop: threading.Event, log: Callable[..., None]) -> None:
    """Members leave, or lose their leases; one that is stuck and still sends heartbeats is left behind, and named.

    Raises:
        UnreachableError: the coordinator does not answer.
    """
    began_s, told = time.monotonic(), False
    while members := client.get_status()[0].members:
        waited_s = time.monotonic() - began_s
        names = some([f"{m.role} {m.index}" for m in members], NAMED)
        if waited_s >= within_s:
            log("left_behind", members=names, reason=f"the job has been over for {within_s:g} s")
            return
        if waited_s >= TELL_AFTER_S and not told:
            log("waiting", reason=f"{names} to leave")
            told = True
        if stop.wait(LOOK_S):
            return


if __name__ == "__main__":
    sys.exit(entry(main))
