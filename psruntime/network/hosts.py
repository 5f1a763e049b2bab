"""Machines by name and address: the address of this process for others, whether only this machine reaches a server, and
whether anything listens at an address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from psruntime.config.process import ProcessConfig, split_address
from psruntime.errors import CredentialsError, StopRequested, UsageError

FIRST_DELAY_S = 0.1  # between two tries to resolve a name; doubled each time
LONGEST_DELAY_S = 2.0
LISTENING = "0A"  # the state of such a socket in /proc/net/tcp (TCP_LISTEN)


def await_names(where: ProcessConfig, stop: threading.Event, log: Callable[..., None]) -> None:
    """Waits until the names that this process was given can be resolved, for `connect_timeout_s` at most.

    A process may start before its own name, or the coordinator's, can be resolved: as a pod does before its DNS record.

    Raises:
        UsageError: one could not be resolved in time; names it.
        StopRequested: `stop` was set.
    """
    began_s, delay_s, logged = time.monotonic(), FIRST_DELAY_S, False
    names = {"the coordinator's host": split_address(where.coordinator)[0], "--host": where.host}
    for what, name in names.items():
        while name and (reason := _why_unresolved(name)):
            if time.monotonic() - began_s >= where.connect_timeout_s:
                raise UsageError(
                    f"{what} '{name}' cannot be resolved: {reason}; it was tried for {where.connect_timeout_s:g} s "
                    "(--connect-timeout)"
                )
            if not logged:
                log("unresolved", name=name, reason=reason, gives_up_after_s=where.connect_timeout_s)
                logged = True
            if stop.wait(delay_s):
                raise StopRequested("asked to stop")
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)


def _why_unresolved(name: str) -> str:
    """Why a name cannot be resolved now; empty if it can."""
    try:
        socket.getaddrinfo(name.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return str(getattr(error, "strerror", None) or error)
    return ""


def own_host(where: ProcessConfig) -> str:
    """`--host`, or the local address of the route to the coordinator.

    Raises:
        UsageError: the coordinator's name cannot be resolved.
    """
    if where.host:
        return where.host
    host, port = split_address(where.coordinator)
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), port or 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # a datagram socket: nothing is sent, the route is looked up
            own = str(probe.getsockname()[0])
    except OSError as error:
        raise UsageError(
            f"the coordinator's host '{host}' cannot be resolved or reached: {error.strerror or error}"
        ) from error
    return f"[{own}]" if ":" in own else own


def is_own_host(host: str) -> bool:
    """Whether a name or an address is this machine's; False if it cannot be resolved."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return any(_is_own(family, address) for family, _, _, _, address in found)


def _is_own(family: int, address: Any) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


def require_loopback(coordinator: str) -> None:
    """Raises a UsageError if other machines may reach a server at `host:port`.

    A name that cannot be resolved passes: call it again after `await_names`.
    """
    host, _ = split_address(coordinator)
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    if not all(ipaddress.ip_address(str(where[0]).partition("%")[0]).is_loopback for *_, where in found):
        raise UsageError(
            f"coordinator {coordinator} would serve other machines without TLS: give --tls-ca, --tls-cert and "
            "--tls-key, or --insecure if all that reach it may change the job (docs/security.md)"
        )


PROTECT = "give --tls-ca, --tls-cert and --tls-key, or --insecure, for a script PSRUNTIME_INSECURE=1 (docs/security.md)"


def require_private(coordinator: str) -> None:
    """Raises a CredentialsError if a token that is sent to `host:port` without TLS leaves this machine."""
    if not is_loopback(split_address(coordinator)[0]):
        raise CredentialsError(f"the token would be sent to {coordinator} without TLS: {PROTECT}")


def require_own_listener(coordinator: str) -> None:
    """Raises a CredentialsError if a process of another user listens at the port, in place of the coordinator."""
    if others := sorted(listeners_at(split_address(coordinator)[1]) - {0, os.geteuid()}):
        raise CredentialsError(
            f"a process of another user ({others[0]}) listens at {coordinator}, and might receive the token, which "
            f"would be sent without TLS: {PROTECT}"
        )


def listeners_at(port: int) -> set[int]:
    """The user ids of the sockets of this machine that listen at the port, at any address; none where the system does
    not list them.
    """
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), open(table) as file:
            for line in file:
                words = line.split()
                if words[3] == LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                    found.add(int(words[7]))
    return found


def is_loopback(host: str) -> bool:
    """Whether a name or address stands for this machine alone."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(where[0]).partition("%")[0]).is_loopback for *_, where in found)


PROBE_S = 1.0  # a refusal comes within a round trip; the claimant waits no longer than this


class Probes:
    """The probes that are under way, at most one for each incarnation.  Used in one event loop's thread."""

    def __init__(self) -> None:
        self._running: dict[int, asyncio.Task[bool]] = {}

    async def nothing_listens(self, incarnation: int, address: str, only: str) -> bool:
        """As the function; callers that ask for the same incarnation share one probe."""
        if incarnation not in self._running:
            probe = asyncio.get_running_loop().create_task(nothing_listens(address, PROBE_S, only))
            probe.add_done_callback(lambda _: self._running.pop(incarnation, None))
            self._running[incarnation] = probe
        return await asyncio.shield(self._running[incarnation])

    async def close(self) -> None:
        probes = list(self._running.values())
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)


async def nothing_listens(address: str, timeout_s: float, only: str) -> bool:
    """True if every address that `host:port` stands for is `only`, and refuses a connection.  In doubt, False."""
    host, port = split_address(address)
    try:
        return await asyncio.wait_for(_all_refuse(host.strip("[]"), port, only), timeout_s)
    except (OSError, ValueError, asyncio.TimeoutError):  # ValueError: no host can have this name
        return False


async def _all_refuse(host: str, port: int, only: str) -> bool:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if not all(_is_same(str(where[0]), only) for *_, where in found):
        return False
    for family, kind, protocol, _, where in found:
        with socket.socket(family, kind, protocol) as caller:
            caller.setblocking(False)
            try:
                await loop.sock_connect(caller, where)
            except ConnectionRefusedError:
                continue
            return False
    return bool(found)


def _is_same(address: str, other: str) -> bool:
    """Whether both are one machine: the same address, or both this machine's alone."""
    return address == other or (is_loopback(address) and is_loopback(other))
