"""Asks a machine whether anything listens at an address, which distinguishes a crashed process from a paused one.

The system continues to accept connections for a process that is paused; it refuses them once the process is
gone.  So only a refusal proves something.
"""

from __future__ import annotations

import asyncio
import socket

from psruntime.config.process import split_address

PROBE_S = 1.0  # a refusal comes within a round trip; the claimant waits no longer than this


class Probes:
    """The probes that are under way, at most one for each incarnation.  Used in one event loop's thread."""

    def __init__(self) -> None:
        self._running: dict[int, asyncio.Task[bool]] = {}

    async def nothing_listens(self, incarnation: int, address: str) -> bool:
        """As the function; callers that ask for the same incarnation share one probe."""
        if incarnation not in self._running:
            probe = asyncio.get_running_loop().create_task(nothing_listens(address, PROBE_S))
            probe.add_done_callback(lambda _: self._running.pop(incarnation, None))
            self._running[incarnation] = probe
        return await asyncio.shield(self._running[incarnation])

    async def close(self) -> None:
        probes = list(self._running.values())
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)


async def nothing_listens(address: str, timeout_s: float) -> bool:
    """True if every address that `host:port` stands for refuses a connection.  In doubt, False."""
    host, port = split_address(address)
    try:
        return await asyncio.wait_for(_all_refuse(host.strip("[]"), port), timeout_s)
    except (OSError, ValueError, asyncio.TimeoutError):  # ValueError: no host can have this name
        return False


async def _all_refuse(host: str, port: int) -> bool:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, where in found:
        with socket.socket(family, kind, protocol) as caller:
            caller.setblocking(False)
            try:
                await loop.sock_connect(caller, where)
            except ConnectionRefusedError:
                continue
            return False
    return bool(found)
