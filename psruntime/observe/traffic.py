"""How many bytes the connections of this process have moved, as the kernel counts them: TensorFlow does not tell.

Linux keeps for each TCP socket what the other side has acknowledged and what was received (linux/tcp.h, struct
tcp_info); a process may ask for its own.  A socket is found by its descriptor's number, which others may close and
give to another file at any time: so no descriptor is duplicated or closed here, and the inode, which no two sockets
share, is compared before and after.

What a connection moved after the last look at it, before it was closed, is not in the sums: they are never too large.
Opening and closing one counts as a byte.  What is on its way, or sent again, does not count as sent.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from psruntime.config import split_address
from psruntime.core.members.messages import Moved
from psruntime.core.members.view import View
from psruntime.errors import UsageError

DESCRIPTORS = "/proc/self/fd"
SOCKET = "socket:["  # how the link of a socket's descriptor begins; its inode follows
BYTES = struct.Struct("=120xQQ")  # of struct tcp_info: tcpi_bytes_acked, tcpi_bytes_received (since Linux 4.1)
FAMILIES = (socket.AF_INET, socket.AF_INET6)
# With the flag Python does not set the socket's mode to the default of new sockets: it is not ours.
STREAM = socket.SOCK_STREAM | getattr(socket, "SOCK_NONBLOCK", 0)
MAPPED = "::ffff:"  # before an IPv4 address, on a socket that listens for both


class End(NamedTuple):
    """One end of a connection."""

    host: str
    port: int


class Connection(NamedTuple):
    """Its two ends: of this process, and of the other one."""

    local: End
    remote: End


class Traffic:
    """Sums over all connections that `counts`, since they were opened.  May be called by any thread.

    Connections whose other end is in this process, too, carry nothing over a network and are left out.
    """

    def __init__(self, counts: Callable[[Connection], bool]) -> None:
        self._counts = counts
        self._lock = threading.Lock()
        self._known: dict[int, Connection] = {}  # by inode, of sockets that were there at the last look
        self._last: dict[int, Moved] = {}  # the same, of those that count
        self._sent = self._received = 0
        self._tells = False  # some sandboxes have the fields, and leave them empty

    def moved(self) -> Moved | None:
        """What they have moved until now; None where the kernel does not tell, or nothing has moved yet at all."""
        with self._lock:
            try:
                found = self._look()
            except (OSError, AttributeError, struct.error):  # no Linux, no /proc, or too old
                return None
            if not self._tells:
                return None
            for inode, now in found.items():
                last = self._last.get(inode, Moved())
                self._sent += now.sent - last.sent
                self._received += now.received - last.received
                self._last[inode] = now
            return Moved(self._sent, self._received)

    def _look(self) -> dict[int, Moved]:
        """What each connection that counts has moved, by inode."""
        known: dict[int, Connection] = {}
        moved: dict[int, Moved] = {}
        sockets = _sockets()
        for descriptor, inode in sockets:
            if inode in known:
                continue  # a second descriptor of it
            read = _read(descriptor, inode, self._known.get(inode))
            if read is not None:
                known[inode], moved[inode] = read
        here = {inode for _, inode in sockets}
        self._known, self._last = known, {inode: last for inode, last in self._last.items() if inode in here}
        self._tells |= any(each.received for each in moved.values())
        ends = set(known.values())
        within = {each for each in ends if Connection(each.remote, each.local) in ends}
        return {inode: m for inode, m in moved.items() if known[inode] not in within and self._counts(known[inode])}


class Peers:
    """Counts connections that others made to this process's server, and those to the others that it was told of.

    server: this process's address, as the others have it; only its port is compared, since it may be reached by
    several hosts.
    """

    def __init__(self, server: str) -> None:
        self._port = split_address(server)[1]
        self._peers: frozenset[End] = frozenset()

    def meet(self, view: View) -> None:
        """These ps are the others, too; those before them may still have a connection."""
        for entry in view.ps:
            with suppress(UsageError):  # whoever connects to it will say so
                self._peers |= {End(*split_address(entry.address))}

    def __call__(self, connection: Connection) -> bool:
        local, remote = connection
        return local.port == self._port or any(_is_at(remote, peer) for peer in self._peers)


def all_but(servers: Iterable[str]) -> Callable[[Connection], bool]:
    """Counts all connections but those to and from these servers, here or elsewhere."""
    ends = [End(*split_address(server)) for server in servers]

    def counts(connection: Connection) -> bool:
        local, remote = connection
        return not any(_is_at(remote, end) or local.port == end.port for end in ends)

    return counts


def _sockets() -> list[tuple[int, int]]:
    """(descriptor, inode) of every socket of this process, as far as they stay."""
    found = []
    for name in os.listdir(DESCRIPTORS):
        try:
            link = os.readlink(f"{DESCRIPTORS}/{name}")
        except OSError:
            continue  # closed meanwhile
        if link.startswith(SOCKET):
            found.append((int(name), int(link[len(SOCKET) : -1])))
    return found


def _read(descriptor: int, inode: int, known: Connection | None) -> tuple[Connection, Moved] | None:
    """What this socket connects, and has moved; None if it is no TCP connection, or is not there any more.

    Raises:
        AttributeError, struct.error: the system does not count bytes.
    """
    try:
        borrowed = socket.socket(type=STREAM, fileno=descriptor)
    except OSError:
        return None
    try:
        if borrowed.family not in FAMILIES or borrowed.proto != socket.IPPROTO_TCP:
            return None
        connection = known or Connection(_end(borrowed.getsockname()), _end(borrowed.getpeername()))
        info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES.size)
        if os.fstat(descriptor).st_ino != inode:
            return None
        return connection, Moved(*BYTES.unpack(info))
    except OSError:
        return None  # not connected, or closed meanwhile
    finally:
        borrowed.detach()


def _end(address: tuple[str, int]) -> End:
    """Of an address as the socket module has it, which for IPv6 has more parts."""
    host, port = address[:2]
    return End(host.removeprefix(MAPPED).partition("%")[0], port)


def _is_at(end: End, server: End) -> bool:
    """Whether this end may be that server, whose host may be a name; a name is not looked up, so its port has to do."""
    return end.port == server.port and (not _is_number(server.host) or end.host == server.host.strip("[]"))


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
