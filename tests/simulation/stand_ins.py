"""The names of the product that are simulated, and what stands for them while a cluster runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from psruntime import ps as ps_module
from psruntime import ps_member
from psruntime.graph.buckets.bucket_store import NO_LIMIT
from psruntime.graph.loop import async_loop, round_loop
from psruntime.rpc.client import coordinator_client, join, latest_answer, membership_client
from psruntime.rpc.server import polls, servicer
from psruntime.rpc.worker import step_gate, worker_control, worker_facts
from tests.simulation.kernel import Condition, Event, Process, Simulation
from tests.simulation.network import Network, grpc_of

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

TIMED = (
    async_loop, coordinator_client, join, latest_answer, membership_client, polls, ps_member, ps_module, round_loop,
    servicer, step_gate, worker_control, worker_facts,
)  # fmt: skip


@contextmanager
def stand_ins(cluster: Cluster) -> Iterator[None]:
    """Replaces them while the cluster runs."""
    draw = cluster.simulation.random
    with pytest.MonkeyPatch.context() as patched:
        put = patched.setattr
        for module in TIMED:
            for name, value in (("threading", cluster.threading), ("time", cluster.time), ("random", draw)):
                if hasattr(module, name):
                    put(module, name, value)
        put(join, "secrets", SimpleNamespace(token_hex=lambda _: f"{draw.getrandbits(64):x}"))
        put(async_loop, "secrets", SimpleNamespace(randbits=draw.getrandbits))
        put(async_loop, "SimpleQueue", partial(Queue, cluster.simulation))
        put(async_loop, "Future", partial(Future, cluster.simulation))
        put(servicer, "secrets", SimpleNamespace(randbelow=draw.randrange))
        put(servicer, "Probes", partial(Probes, cluster.network))
        put(coordinator_client, "grpc", grpc_of(cluster.network))
        put(coordinator_client, "why_refused", lambda *_: "")
        put(ps_member, "start_server", None)
        put(ps_member, "interface_for", lambda *_: "")
        put(ps_member, "PsState", partial(PsState, cluster))
        put(ps_member, "all_but", lambda *_: None)
        put(ps_member, "TrafficMeter", lambda *_: SimpleNamespace(moved=lambda: None))
        put(ps_member, "Links", lambda *_: SimpleNamespace(start=lambda: None, close=lambda: None))
        put(ps_member, "newest_step", lambda _: cluster.folder.newest_step)
        put(ps_member, "this_machine", lambda _: None)
        put(ps_member, "versions", lambda: ())
        yield


class Queue:
    """As queue.SimpleQueue."""

    def __init__(self, simulation: Simulation) -> None:
        self._items: deque[Any] = deque()
        self._changed = Condition(simulation)

    def put(self, item: Any) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> Any:
        with self._changed:
            while not self._items:
                self._changed.wait()
            return self._items.popleft()


class Future:
    """As concurrent.futures.Future."""

    def __init__(self, simulation: Simulation) -> None:
        self._ended = Event(simulation)
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._ended.is_set()

    def set_result(self, result: Any) -> None:
        self._result = result
        self._ended.set()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._ended.set()

    def exception(self) -> BaseException | None:
        self._ended.wait()
        return self._error

    def result(self) -> Any:
        if error := self.exception():
            raise error
        return self._result


class Probes:
    """As psruntime.network.hosts.Probes."""

    def __init__(self, network: Network) -> None:
        self._network = network

    async def nothing_listens(self, incarnation: int, address: str, only: str) -> bool:
        return self._network.is_dead(address)

    async def close(self) -> None:
        """None is under way."""


class PsState:
    """As graph/session/ps_state.py, of the ps of the current process."""

    has_plan = True

    def __init__(self, cluster: Cluster, target: Process, index: int, max_workers: int) -> None:
        self._cluster = cluster
        self._servers = cluster.ps_of[target]

    def write_admitted(self, admitted: dict[int, int], max_staleness: int | None, scale: float = 1.0) -> None:
        self._cluster.time.sleep(0.001)
        self._servers.admitted = dict(admitted)
        self._servers.max_staleness = NO_LIMIT if max_staleness is None else max_staleness

    def clear_session(self, worker: int) -> str:
        self._servers.cancel(worker)
        return ""

    def set_plan(self, plan: Any) -> None:
        """The buckets are there."""

    def read(self) -> tuple[Any, int]:
        return self._servers.stats, self._servers.global_step

    def accepted(self) -> dict[int, tuple[int, int]]:
        return {}

    def unbalanced(self) -> list[str]:
        return self._cluster.audit.unbalanced(self._servers)
