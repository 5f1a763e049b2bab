"""A ps with TensorFlow: its server, its fence, its ledgers, and its membership of the job.

Imports TensorFlow, so only once its environment is set (graph/base/environment.py).
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, replace

from psruntime.config.process import ProcessConfig
from psruntime.core.accounting.accounts import ledger_facts
from psruntime.core.members.departures import SessionCleanup
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, Instructions, LeaveKind, PsBeat, PsStats
from psruntime.core.members.view import Past
from psruntime.core.plan.identity import ModelIdentity
from psruntime.core.plan.plan import make_plan
from psruntime.errors import ReplacedError, StopRequested, UnreachableError
from psruntime.graph.base.environment import tensorflow_version
from psruntime.graph.base.server import start_server
from psruntime.graph.checkpoint.listing import newest_step
from psruntime.graph.model.identity import versions
from psruntime.graph.session.ps_state import PsState
from psruntime.network.connections import Links, all_but
from psruntime.network.interfaces import interface_for
from psruntime.observe.meter import TrafficMeter
from psruntime.process.machine import this_machine
from psruntime.process.process import Process
from psruntime.rpc.client.coordinator_client import ClientContext
from psruntime.rpc.client.join import Registration
from psruntime.rpc.client.membership_client import MembershipClient

SERVE_S = 0.3  # how often a ps that serves looks whether it was asked to stop


class PsMember:
    """A ps: its instructions become the fence, what it counts becomes heartbeats.  `membership` is to be started.

    host: at which the others reach this process.  health_address: of its health service, or of the coordinator.
    """

    def __init__(
        self, where: ProcessConfig, context: ClientContext, process: Process, host: str, health_address: str
    ) -> None:
        job = context.job
        self._job, self._client, self._process = job, context.client, process
        interface = interface_for(host, where.coordinator, where.interface)
        self._server, self.address = start_server("ps", where.index, host, where.port, interface)
        self._state = PsState(self._server.target, where.index, job.max_workers)
        self._fence_revision = 0
        self._written: object = None  # the fence that is in force, and of which incarnation
        self._stats = PsStats()  # as the last heartbeat has it
        self._view = 0  # the prepared view, 0 while there is none
        self._has_model = False  # whose buckets are here; a script has none
        self._cleanup = SessionCleanup(job.lease_s)
        data_plane = all_but((context.client.address, health_address))
        self._traffic = TrafficMeter(data_plane)
        links = Links(data_plane, job.link_timeout_s, process.log)
        links.start()
        process.at_exit.callback(links.close)
        self._beating = threading.Lock()
        past = Past(saved_step=newest_step(job.checkpoint_dir))
        machine = this_machine(tensorflow_version())
        me = Registration(
            Role.PS,
            where.index,
            self.address,
            health_address,
            past=past,
            machine=machine,
            identity=ModelIdentity(tuple(versions())),
        )
        self.membership = MembershipClient(context, me, self._beat, self._receive)

    def stats(self) -> PsStats:
        """As the last heartbeat has it."""
        return self._stats

    def serve(self) -> Instructions:
        """Until the job is over; returns the instructions that say so.

        Raises:
            StopRequested: this ps was asked to stop, and may leave the job.
        """
        self._process.ends_in_good_order(self._job.stop_grace_s)
        while (answer := self.membership.wait_until(lambda a: a.instructions.phase.over, SERVE_S)) is None:
            if self._process.asked.is_set() and self._may_leave():
                raise StopRequested("asked to stop")
        self._log_ledger()
        self._report_counts()
        self.membership.leave(LeaveKind.OVER, f"the job is {answer.instructions.phase}")
        return answer.instructions

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
            self._state.write_admitted(dict(instructions.admitted), instructions.max_staleness, scale)
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
