"""The network of a simulated job: gRPC between members and coordinator, and the calls of TensorFlow's sessions.

Calls to the coordinator take the way of the product but for gRPC itself: CoordinatorClient on a stand-in for a channel,
and CoordinationServicer in a loop of its process.  A message may be late, lost or answered twice over; a cut link loses
what is sent while it is cut.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import grpc

from tests.simulation.kernel import Event, Loop, Process, Simulation

LINK_TIMEOUT_S = 2.5  # after which the product closes a connection on which nothing is acknowledged


class CallError(grpc.RpcError):  # type: ignore[misc]
    def __init__(self, code: Any, details: str = "", metadata: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(f"{code}: {details}")
        self._code, self._details, self._metadata = code, details, metadata

    def code(self) -> Any:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata


class _Aborted(Exception):
    pass


@dataclass
class Network:
    """Delays, losses and cuts between processes by their names, all drawn from the seed.

    loss: the share of messages to or from the coordinator that is lost.  slow_s: more delay of each message of a name.
    """

    simulation: Simulation
    loss: float = 0.0
    cut: set[frozenset[str]] = field(default_factory=set)
    slow_s: dict[str, float] = field(default_factory=dict)
    servers: dict[str, tuple[Process, Loop, Any]] = field(default_factory=dict)  # coordinators, by their address
    ps: dict[str, Any] = field(default_factory=dict)  # by the address of TensorFlow's server
    health: dict[str, Process] = field(default_factory=dict)  # by the address of its health service

    def is_cut(self, one: Process, other: Process) -> bool:
        return frozenset((one.name, other.name)) in self.cut

    def delay_s(self, one: Process, other: Process) -> float:
        slow_s = self.slow_s.get(one.name, 0.0) + self.slow_s.get(other.name, 0.0)
        return self.simulation.random.uniform(0.0002, 0.002) + slow_s * self.simulation.random.random()

    def is_lost(self, one: Process, other: Process) -> bool:
        return self.is_cut(one, other) or (self.loss > 0 and self.simulation.random.random() < self.loss)

    def channel(self, address: str) -> Any:
        """What stands for a grpc channel of the current process."""
        caller = self.simulation.current
        assert caller is not None

        def unary_unary(path: str, **_: object) -> Any:
            return _Method(self, caller, address, path.rpartition("/")[2])

        return SimpleNamespace(unary_unary=unary_unary, close=lambda: None)

    def is_dead(self, health_address: str) -> bool:
        """Whether a probe of this address finds that nothing listens there; each process has one of its own."""
        return not any(process.alive and at == health_address for at, process in self.health.items())


class _Method:
    """A method of a stub."""

    def __init__(self, network: Network, caller: Process, address: str, name: str) -> None:
        self._network, self._caller, self._address, self._name = network, caller, address, name

    def __call__(self, request: Any, timeout: float, metadata: Any = ()) -> Any:
        return self.future(request, timeout).result(None)

    def future(self, request: Any, timeout: float, metadata: Any = ()) -> _Call:
        return _Call(self._network, self._caller, self._address, self._name, request, timeout)


class _Call:
    """A call that is under way."""

    def __init__(
        self, network: Network, caller: Process, address: str, name: str, request: Any, timeout_s: float
    ) -> None:
        self._network, self._caller, self._name, self._request = network, caller, name, request
        self._done, self._outcome = Event(network.simulation), None
        self._handler: Any = None
        self._server: Process | None = None
        caller.after(timeout_s, lambda: self._fail(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time"))
        caller.on_death.append(self.cancel)
        server, delay_s = network.servers.get(address), 0.001
        if server is not None:
            delay_s = network.delay_s(caller, server[0])
        if server is None or not server[0].alive:
            caller.after(delay_s, lambda: self._fail(grpc.StatusCode.UNAVAILABLE, "connection refused"))
        elif not network.is_lost(caller, server[0]):
            server[0].after(delay_s, lambda: self._arrive(server))
            self._server = server[0]
            self._server.on_death.append(self._broken)

    def result(self, timeout: float | None) -> Any:
        if not self._done.wait(timeout):
            raise grpc.FutureTimeoutError
        assert self._outcome is not None
        if isinstance(self._outcome[0], CallError):
            raise self._outcome[0]
        return self._outcome[0]

    def cancel(self) -> None:
        """As when its client ends: the handler is cancelled a moment later."""
        self._end(CallError(grpc.StatusCode.CANCELLED))

    def _arrive(self, server: tuple[Process, Loop, Any]) -> None:
        process, loop, servicer = server
        if self._done.is_set():
            return
        context = SimpleNamespace(abort=self._abort, peer=lambda: f"ipv4:{self._caller.name}:1")
        self._handler = loop.create_task(getattr(servicer, self._name)(self._request, context))
        self._handler.add_done_callback(lambda handler: self._answer(process, handler))

    async def _abort(self, code: Any, details: str, metadata: Any = ()) -> None:
        raise _Aborted(code, details, metadata)

    def _answer(self, process: Process, handler: Any) -> None:
        if handler.cancelled() or not process.alive:
            return
        error = handler.exception()
        if error is not None and not isinstance(error, _Aborted):
            self._network.simulation.defects.append(f"{self._name} raised {error!r}")
        outcome = handler.result() if error is None else CallError(*error.args)
        if not self._network.is_lost(process, self._caller):
            self._caller.after(self._network.delay_s(process, self._caller), lambda: self._end(outcome))

    def _broken(self) -> None:
        self._caller.after(0.002, lambda: self._fail(grpc.StatusCode.UNAVAILABLE, "the connection broke"))

    def _fail(self, code: Any, details: str) -> None:
        self._end(CallError(code, details))

    def _end(self, outcome: Any) -> None:
        if self._done.is_set():
            return
        self._outcome = (outcome,)
        self._done.set()
        self._request = None
        if self._handler is not None and not self._handler.done():
            self._network.simulation.at(0.001, self._handler.cancel, self._server)
        for process, act in ((self._caller, self.cancel), (self._server, self._broken)):
            if process is not None and act in process.on_death:
                process.on_death.remove(act)


def grpc_of(network: Network) -> Any:
    """What stands for the module grpc in the client."""
    return SimpleNamespace(
        RpcError=grpc.RpcError, StatusCode=grpc.StatusCode, FutureTimeoutError=grpc.FutureTimeoutError,
        FutureCancelledError=grpc.FutureCancelledError,
        insecure_channel=lambda address, options=(): network.channel(address),
    )  # fmt: skip
