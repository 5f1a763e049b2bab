"""A coordinator in this process, members that talk to it, and the proof that nothing is left of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest

from psruntime.config import JobConfig
from psruntime.core.coordinator.coordinator import Coordinator
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer, Join, LeaveKind, PsBeat, PsStats, WorkerBeat, WorkerStats
from psruntime.core.plan.buckets import VariableSpec
from psruntime.errors import PsRuntimeError
from psruntime.rpc.client.coordinator_client import ClientContext, CoordinatorClient
from psruntime.rpc.client.join import Registration
from psruntime.rpc.client.membership_client import MembershipClient
from psruntime.rpc.server.rpc_server import RpcServer
from psruntime.rpc.server.servicer import CoordinationServicer
from psruntime.rpc.wire.messages import Heartbeat
from psruntime.rpc.wire.security import OPEN, Security
from tests.support.certificates import Authority
from tests.support.polling import poll_until

SPECS = (VariableSpec("dense/kernel", (4, 2), "float32"), VariableSpec("dense/bias", (2,), "float32"))
OURS = ("rpc-server", "heartbeat", "clock-reports")  # names of the threads that this package starts

# A lease that does not end within a test: what happens all the same does not happen because a lease ended.
LONG = 600.0
JOB_ID = "tests"  # of the coordinators that hear `a_join`
PAIR = JobConfig(job_id=JOB_ID, ps=1, min_workers=2, train_steps=10, lease_s=LONG, ps_timeout_s=LONG)


class Events(list[tuple[str, dict[str, Any]]]):
    """A log that remembers."""

    def __call__(self, event: str, /, **facts: Any) -> None:
        self.append((event, facts))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [facts for event, facts in list(self) if event == name]


class Stage:
    """Starts coordinators, clients and memberships, and ends them all."""

    def __init__(self) -> None:
        self.events = Events()
        self.stop = threading.Event()  # of all members
        self._at_exit = ExitStack()

    def coordinator(
        self,
        job: JobConfig,
        address: str = "127.0.0.1:0",
        make: Callable[[float], Coordinator] | None = None,
        security: Security = OPEN,
        **options: Any,
    ) -> RpcServer:
        make = make or partial(Coordinator, job)
        service = lambda: CoordinationServicer(make, job, self.events, **{"fresh_s": LONG, **options})  # noqa: E731
        server = RpcServer(address, service, security=security, log=self.events)
        server.start()
        self._at_exit.callback(server.stop, 0.0)
        return server

    def health(self) -> str:
        """The address of a live process."""
        server = RpcServer("127.0.0.1:0")
        server.start()
        self._at_exit.callback(server.stop, 0.0)
        return f"127.0.0.1:{server.port}"

    def refusing(self) -> str:
        """An address at which something listened a moment ago."""
        server = RpcServer("127.0.0.1:0")
        server.start()
        server.stop(0.0)
        return f"127.0.0.1:{server.port}"

    def client(self, server: RpcServer, security: Security = OPEN, host: str = "127.0.0.1") -> CoordinatorClient:
        client = CoordinatorClient(f"{host}:{server.port}", security)
        self._at_exit.callback(client.close)
        return client

    def membership(
        self,
        client: CoordinatorClient,
        job: JobConfig,
        role: Role,
        index: int,
        beat: Callable[[int], Any] | None = None,
        on_answer: Callable[[Answer], None] = lambda _: None,
        health: str = "127.0.0.1:9",
        specs: tuple[VariableSpec, ...] = SPECS,
        on_end: Callable[[PsRuntimeError], None] = lambda _: None,
    ) -> MembershipClient:
        beat = beat or (lambda _: PsBeat() if role is Role.PS else WorkerBeat())
        me = Registration(role, index, f"127.0.0.1:{2000 + index}", health, specs if role is Role.WORKER else ())
        membership = MembershipClient(self.context(client, job), me, beat, on_answer, on_end)
        self._at_exit.callback(membership.leave, LeaveKind.ASKED, "the test is over")
        return membership

    def context(self, client: CoordinatorClient, job: JobConfig) -> ClientContext:
        return ClientContext(client, job, self.stop, self.events)

    def close(self) -> None:
        self._at_exit.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    try:
        yield stage
    finally:
        stage.close()
        poll_until(lambda: not _left_over(), 10, f"all threads ended, left are {_left_over()}")


@pytest.fixture
def server(stage: Stage) -> RpcServer:
    """The coordinator of PAIR, one ps and two workers."""
    return stage.coordinator(PAIR)


@pytest.fixture
def client(stage: Stage, server: RpcServer) -> CoordinatorClient:
    return stage.client(server)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The CA of the job."""
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another CA."""
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def _left_over() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name in OURS]


def a_join(role: Role, index: int, join_id: str = "one", health: str = "127.0.0.1:9", waited_s: float = 0.0) -> Join:
    specs = SPECS if role is Role.WORKER else ()
    return Join(role, index, f"127.0.0.1:{2000 + index}", health, join_id, JOB_ID, waited_s, specs)


def a_beat(
    answer: Answer,
    role: Role,
    index: int,
    beat: PsBeat | WorkerBeat | None = None,
    wait_s: float = 0.0,
    seen: int | None = None,
) -> Heartbeat:
    """The heartbeat that follows an answer."""
    facts = beat or (PsBeat() if role is Role.PS else WorkerBeat())
    revision = answer.revision if seen is None else seen
    return Heartbeat(role, index, answer.incarnation, facts, revision, wait_s)


def hold(pool: Executor, client: CoordinatorClient, heartbeat: Heartbeat) -> Future[Answer]:
    """Sends a heartbeat from another thread and returns once the coordinator has it.

    It is recognised in the status by a mark in its stats.
    """
    beat = heartbeat.beat
    if isinstance(beat, PsBeat):
        beat = replace(beat, stats=PsStats(bytes_held=next(_marks)))
    else:
        beat = replace(beat, stats=WorkerStats(pushes=next(_marks)))

    def arrived() -> bool:
        members = client.get_status()[0].members
        return any(beat.stats in (member.ps_stats, member.worker_stats) for member in members)

    held = pool.submit(client.heartbeat, replace(heartbeat, beat=beat, max_wait_s=LONG), LONG)
    poll_until(arrived, 10, "the heartbeat has arrived")
    return held


_marks = count(1)
