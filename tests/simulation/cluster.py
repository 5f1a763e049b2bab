"""A whole job in virtual time: ps, workers, the launcher that starts them again, and the faults of its seed.

What runs is the product: Coordinator behind CoordinationServicer, PsMember, MembershipClient, WorkerControl, Gate,
ViewSessionCreator and RoundLoop.  What is simulated is below: gRPC and TensorFlow (network.py, servers.py, session.py),
threads and clocks (kernel.py), and the body of main functions (here).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from psruntime import ps as ps_module
from psruntime import ps_member
from psruntime.config import JobConfig
from psruntime.config.schedule import SYNC
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import LeaveKind, WorkerStats
from psruntime.core.members.view import Past, Phase
from psruntime.core.plan.buckets import VariableSpec
from psruntime.errors import (
    JobDoneError,
    JobFailedError,
    JobStoppedError,
    PassingError,
    PsRuntimeError,
    StopRequested,
)
from psruntime.rpc.client import coordinator_client, join
from psruntime.rpc.server import servicer
from psruntime.rpc.worker.worker_membership import worker_membership
from tests.simulation.audit import RoundAudit, UpdateAudit
from tests.simulation.checkpoints import Folder
from tests.simulation.kernel import Loop, Process, Simulation, threading_of, time_of
from tests.simulation.network import Network
from tests.simulation.schedules import Fault, Schedule, schedule_of
from tests.simulation.servers import Servers
from tests.simulation.session import Session
from tests.simulation.stand_ins import stand_ins
from tests.simulation.training import Training

COORDINATOR = "ps0:1"
SPECS = tuple(VariableSpec(name, (4,), "float32") for name in ("a", "b"))
LOGGED = ("was", "now", "view", "global_step", "round", "attempt", "member", "steps_lost")
SLOW = 0.06  # of the time for which a link is slow: by how much, at most
QUIET_S = 120.0  # of virtual time after the last fault, in which a job has to end


class ProcessSide:
    """As psruntime.process.process.Process, for the members."""

    def __init__(self, cluster: Cluster, process: Process) -> None:
        threading = cluster.threading
        self.stop, self.asked = threading.Event(), threading.Event()
        self.at_exit = ExitStack()
        self.log = partial(cluster.log, process)

    def ends_in_good_order(self, _: float) -> None:
        """No signal comes."""


class Cluster:
    """One job."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.simulation = Simulation(schedule.seed + 1_000_003)
        self.network, self.folder = Network(self.simulation), Folder()
        self.threading, self.time = threading_of(self.simulation), time_of(self.simulation)
        self.job = JobConfig(
            ps=schedule.num_ps, min_workers=schedule.min_workers, max_workers=schedule.workers, mode=schedule.mode,
            train_steps=schedule.rounds, backup_workers=schedule.backup_workers, bound=schedule.bound,
            pipeline=schedule.pipeline, lease_s=2.0, ps_timeout_s=30.0, drain_timeout_s=10.0, job_id="simulated",
        )  # fmt: skip
        every = range(3)
        self.buckets = [[n for n in every if n % schedule.num_ps == ps] for ps in range(schedule.num_ps)]
        self.audit = RoundAudit(self) if schedule.mode == SYNC else UpdateAudit(self)
        self.running: dict[str, Process] = {}
        self.exits: dict[str, int] = {}
        self.coordinator: Coordinator | None = None
        self.sessions: dict[str, list[Session]] = {}  # by the name of their worker
        self.ps_of: dict[Process, Servers] = {}
        self._starts = 0
        self._hits = list(schedule.in_preparations)
        self._left = schedule.workers  # that come back when they are killed

    def log(self, process: Process, event: str, **facts: Any) -> None:
        if event == "defect":
            self.simulation.defects.append(f"{process.name}: {facts}")
        if event == "phase" and facts["now"] is Phase.PREPARING and self._hits:
            fault = self._hits.pop(0)
            chief = self.coordinator.state.chief if self.coordinator else None
            name = f"worker{chief or 0}" if fault.name == "chief" else fault.name
            self.simulation.at(fault.at_s, partial(self._inject, replace(fault, name=name)))
        reason = str(facts.get("reason", ""))
        self.simulation.note(process.name, event, *(f"{k}={v}" for k, v in facts.items() if k in LOGGED), reason[:60])

    # Runs.

    def run(self) -> list[str]:
        """Until all processes have ended in order; what was wrong."""
        last_s = 0.0
        for fault in self.schedule.faults:
            self.simulation.at(fault.at_s, partial(self._inject, fault))
            last_s = max(last_s, fault.at_s + fault.for_s)
        names = [f"ps{i}" for i in range(self.schedule.num_ps)] + [f"worker{i}" for i in range(self.schedule.workers)]
        with stand_ins(self):
            for name in names:
                self.simulation.at(self.simulation.random.random() * 0.2, partial(self.start, name))
            ended = self.simulation.run(
                lambda: self._is_over or bool(self.simulation.defects or self.audit.faults),
                last_s + QUIET_S,
            )
            found = [*self.simulation.defects, *self.audit.faults]
            if not found and not ended:
                found = [f"no end {QUIET_S:g} s after the last fault: {self.state}"]
            found = found or self.audit.at_end()
            for process in list(self.running.values()):
                process.kill()
        return found

    @property
    def is_done(self) -> bool:
        return self.coordinator is not None and self.coordinator.state.phase is Phase.DONE

    @property
    def _is_over(self) -> bool:
        """Whether the ps have ended.  A worker that was not there at the end of the job finds no coordinator then."""
        return all(f"ps{index}" in self.exits for index in range(self.schedule.num_ps))

    @property
    def state(self) -> str:
        state = self.coordinator.state if self.coordinator else None
        where = f"{state.phase}, round {state.sync.rounds.round}: {state.reason}" if state else "no coordinator"
        return f"{where}; running: {', '.join(sorted(self.running))}; exits: {self.exits}"

    # Faults.

    def _inject(self, fault: Fault) -> None:
        self.simulation.note("fault", fault)
        process = self.running.get(fault.name)
        later = partial(self.simulation.at, fault.for_s)
        match fault.kind:
            case "kill" if process:  # it is started again after `for_s`
                self._kill(fault.name, process, fault.for_s)
            case "pause" if process:
                process.pause()
                later(process.resume)
            case "end" if process and fault.name.startswith("worker") and self._left > self.schedule.min_workers:
                self._left -= 1
                self._kill(fault.name, process, None)
            case "reset" if process:  # the connections between the two of TensorFlow's
                for session in self.sessions.get(fault.name, []):
                    session.reset(fault.other)
            case "cut":
                pair = frozenset((fault.name, fault.other))
                self.network.cut.add(pair)
                later(partial(self.network.cut.discard, pair))
            case "slow":
                self.network.slow_s[fault.name] = SLOW * fault.for_s
                later(partial(self.network.slow_s.pop, fault.name, None))
            case "loss":
                self.network.loss = 0.2
                later(partial(setattr, self.network, "loss", 0.0))
            case "disk":
                self.folder.fails_until_s = self.simulation.now_s + fault.for_s

    def _kill(self, name: str, process: Process, back_s: float | None) -> None:
        """back_s: after which a launcher starts it again; None: never."""
        process.kill()
        self.running.pop(name, None)
        if back_s is not None:
            self.simulation.at(back_s, partial(self.start, name))

    # Processes.

    def start(self, name: str) -> None:
        """As a launcher does; once the job is done a ps that was killed is not started again."""
        if self.is_done and name.startswith("ps"):
            self.exits[name] = 0
            return
        self._starts += 1
        draw = self.simulation.random
        process = Process(self.simulation, name, draw.uniform(0.0, 1000.0), draw.uniform(0.98, 1.02))
        self.running[name] = process
        self.simulation.note("start", name)
        index = int(name[-1])
        main = partial(self._ps if name.startswith("ps") else self._worker, process, index, self._starts)
        process.spawn(partial(self._main, process, main), "main")

    def _main(self, process: Process, main: Callable[[], int]) -> None:
        try:
            code = main()
        except (JobDoneError, StopRequested):
            code = 0
        except PsRuntimeError as error:
            code = error.exit_code or 1
            self.simulation.note(process.name, "ends", type(error).__name__, str(error)[:80])
        self._exit(process, code)

    def _exit(self, process: Process, code: int) -> None:
        self.simulation.note("exit", process.name, code)
        self.running.pop(process.name, None)
        if code == 0:
            self.exits[process.name] = 0
        else:
            over = self.coordinator is not None and self.coordinator.state.phase is Phase.FAILED
            if over:
                self.exits[process.name] = code
            else:
                self.simulation.at(0.5, partial(self.start, process.name))
        process.kill()

    def _ps(self, process: Process, index: int, number: int) -> int:
        side = ProcessSide(self, process)
        if index == 0:
            loop = Loop(process)
            service = servicer.CoordinationServicer(
                self._make_coordinator, self.job, side.log, now=lambda: process.clock_s, record=self.audit.record
            )
            self.network.servers[COORDINATOR] = (process, loop, service)
            loop.create_task(_opened(service))
        client = coordinator_client.CoordinatorClient(COORDINATOR)
        job = join.fetch_job(client, {}, 60.0, side.stop, side.log)
        context = coordinator_client.ClientContext(client, job, side.stop, side.log, side.asked)
        servers = Servers(process, index, self.buckets[index], self.audit)
        address, health = f"ps{index}:{5000 + number}", f"ps{index}:{6000 + number}"
        self.network.ps[address], self.network.health[health] = servers, process
        self.audit.servers[index] = servers
        self.ps_of[process] = servers
        where = SimpleNamespace(index=index, port=0, coordinator=COORDINATOR, interface="")
        ps_member.start_server = lambda *_: (SimpleNamespace(target=process), address)
        member = ps_member.PsMember(where, context, side, f"ps{index}", health)  # type: ignore[arg-type]
        member.membership.start(60.0)
        over = member.serve()
        if index == 0:
            try:
                ps_module.await_empty(client, 2 * job.lease_s, side.stop, side.log)
            except PsRuntimeError:
                return 1
        return 0 if over.phase is Phase.DONE else 1

    def _make_coordinator(self, now_s: float) -> Coordinator:
        self.coordinator = Coordinator(self.job, now_s)
        return self.coordinator

    def _worker(self, process: Process, index: int, number: int) -> int:
        side = ProcessSide(self, process)
        client = coordinator_client.CoordinatorClient(COORDINATOR)
        job = join.fetch_job(client, {}, 60.0, side.stop, side.log, index)
        context = coordinator_client.ClientContext(client, job, side.stop, side.log, side.asked)
        health = f"worker{index}:{6000 + number}"
        self.network.health[health] = process
        past, address = Past(saved_step=self.folder.newest_step), f"worker{index}:{5000 + number}"
        me = join.Registration(Role.WORKER, index, address, health, SPECS, past)
        ended: list[PsRuntimeError] = []
        control, membership = worker_membership(
            context, me, lambda waiting: WorkerStats(waiting=waiting), side.at_exit, lambda _: None, ended.append
        )
        membership.start(60.0)
        try:
            Training(self, process, index, number, control, job, side.log).run()
        except StopRequested:
            raise
        except JobFailedError as error:
            membership.leave(LeaveKind.FATAL, str(error))
            raise
        except (JobDoneError, JobStoppedError) as error:
            membership.leave(LeaveKind.OVER, str(error))
            raise
        except PassingError as error:
            membership.leave(LeaveKind.ERROR, str(error))
            raise
        phase = membership.answer.instructions.phase
        membership.leave(LeaveKind.OVER, f"the job is {phase}")
        side.at_exit.close()
        return 0


async def _opened(service: servicer.CoordinationServicer) -> None:
    service.open()


def outcome(seed: int, mode: str = SYNC) -> tuple[list[str], Cluster]:
    """Plays the schedule of a seed: (what was wrong, the cluster after it)."""
    return outcome_of(schedule_of(seed, mode))


def outcome_of(schedule: Schedule) -> tuple[list[str], Cluster]:
    cluster = Cluster(schedule)
    return cluster.run(), cluster


def smaller(schedule: Schedule) -> Schedule:
    """A schedule with fewer faults, a job with less in it, that still goes wrong."""
    while True:
        faults = schedule.faults
        tries = [replace(schedule, faults=faults[:i] + faults[i + 1 :]) for i in range(len(faults))]
        tries += [replace(schedule, in_preparations=schedule.in_preparations[1:])] if schedule.in_preparations else []
        tries += [replace(schedule, rounds=schedule.rounds // 2)] if schedule.rounds > 1 else []
        found = next((each for each in tries if outcome_of(each)[0]), None)
        if found is None:
            return schedule
        schedule = found
