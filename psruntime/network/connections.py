"""The TCP connections of this process, found among its descriptors: TensorFlow exposes none of them.

A socket is found by its descriptor's number, which other code may close and reuse for another file at any time: so only
our own duplicates are closed here, and the inode, which no two sockets share, is compared.
Only Linux supports this.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from psruntime.config.process import split_address
from psruntime.core.members.view import View
from psruntime.errors import UsageError

DESCRIPTORS = "/proc/self/fd"
SOCKET = "socket:["  # how the link of a socket's descriptor begins; its inode follows
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


class Descriptor(NamedTuple):
    """Where a socket of this process was found."""

    number: int
    inode: int

    def is_current(self) -> bool:
        """Whether the number still is that socket's.  OSError: it is closed."""
        return os.fstat(self.number).st_ino == self.inode


def descriptors() -> list[Descriptor]:
    """Every socket of this process that stays open.  OSError: the system does not list them."""
    found = []
    for name in os.listdir(DESCRIPTORS):
        try:
            link = os.readlink(f"{DESCRIPTORS}/{name}")
        except OSError:
            continue  # closed meanwhile
        if link.startswith(SOCKET):
            found.append(Descriptor(int(name), int(link[len(SOCKET) : -1])))
    return found


@contextmanager
def borrowed(number: int) -> Iterator[socket.socket | None]:
    """The socket of a descriptor, to be read; None if it is no TCP socket, or is not there any more.

    The number may become another file's meanwhile: compare the inode after reading.
    """
    try:
        found = socket.socket(type=STREAM, fileno=number)
    except OSError:
        yield None
        return
    try:
        yield found if found.family in FAMILIES and found.proto == socket.IPPROTO_TCP else None
    finally:
        found.detach()


@contextmanager
def duplicated(at: Descriptor) -> Iterator[socket.socket | None]:
    """The socket itself, to be changed; None as for `borrowed`.  It stays open at least until the end of the block."""
    try:
        number = os.dup(at.number)
    except OSError:
        yield None
        return
    try:
        if os.fstat(number).st_ino == at.inode:
            with borrowed(number) as tcp:
                yield tcp
        else:
            yield None
    finally:
        os.close(number)


def connection_of(tcp: socket.socket) -> Connection:
    """Its ends.  OSError: it is not connected, or was closed meanwhile."""
    return Connection(end_of(tcp.getsockname()), end_of(tcp.getpeername()))


class Peers:
    """Counts connections that others made to this process's server, and those to the ps of its views.

    server: this process's address, as the others have it; only its port is compared, since it may be reached by
    several hosts.
    """

    def __init__(self, server: str) -> None:
        self._port = split_address(server)[1]
        self._peers: frozenset[End] = frozenset()

    def add(self, view: View) -> None:
        """Adds the ps of a view; those of earlier ones may still have a connection."""
        for entry in view.ps:
            with suppress(UsageError):  # connecting to it fails with the same error
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


def end_of(address: Sequence[Any]) -> End:
    """The end at an address of the socket module: host and port, for IPv6 with more parts."""
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
