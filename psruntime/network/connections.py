"""The TCP connections of this process: found among its descriptors, and ended where they lead to no machine or lost ps.

TensorFlow exposes no connection.  A socket is found by its descriptor's number, which other code may close and reuse
for another file at any time: so only our own duplicates are closed here, and the inode, which no two sockets share, is
compared.  Only Linux supports this.

A run of TensorFlow has no time limit of its own, and a step may be silent for minutes, so gRPC's pings are no help: a
server ends a connection that pings while no data is sent (`too_many_pings`).  Two other checks find dead connections:

- The kernel asks the other machine's kernel (TCP keepalive and TCP_USER_TIMEOUT, see tcp(7)).  That one answers also
  while the process there is busy, or stopped; it does not if the machine is down or the link is cut.
- The coordinator, by leases, finds a ps that is stopped or hangs.  It is then in no view, and the connections to it are
  shut down here: every call on them fails at once, and with it the run.
"""

from __future__ import annotations

import ipaddress
import math
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from psruntime.config.process import split_address
from psruntime.core.members.messages import Instructions
from psruntime.core.members.view import Phase, View
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


LOOK_S = 1.0  # how often new connections are looked for, and those to cut
END_S = 1.0  # for the thread to end
PROBES = 3  # that the kernel sends within the time limit
UNUSABLE = (Phase.FORMING, Phase.FAILED)  # no worker has a usable session then


class Links:
    """Has the kernel watch the connections that `counts`: it closes one on which the other machine acknowledges
    nothing for `timeout_s`.  Works in a thread of its own.
    """

    def __init__(self, counts: Callable[[Connection], bool], timeout_s: float, log: Callable[..., None]) -> None:
        self._counts = counts
        self._timeout_s = timeout_s
        self._log = log
        self._watched: dict[int, Connection | None] = {}  # by inode; None: it does not count
        self._closed = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="links", daemon=True)

    def start(self) -> None:
        """Starts to watch; logs where the system has no means for it."""
        try:
            descriptors()
        except OSError as error:
            self._log("links_unwatched", reason=f"a run may wait for ever for a ps that is gone: {error}")
            return
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; the connections stay as they are.  May be repeated."""
        self._closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(END_S)

    def _keep(self) -> None:
        while not self._closed:
            self._look()
            self._wake.wait(LOOK_S)
            self._wake.clear()

    def _look(self) -> list[tuple[Descriptor, Connection]]:
        """Watches new connections; returns all that count and are there."""
        here = descriptors()
        for at in here:
            if at.inode not in self._watched:
                self._watch_socket(at)
        inodes = {at.inode for at in here}
        self._watched = {inode: connection for inode, connection in self._watched.items() if inode in inodes}
        return [(at, connection) for at in here if (connection := self._watched.get(at.inode))]

    def _watch_socket(self, at: Descriptor) -> None:
        """Watches a socket from now on; one that is not connected yet is tried again."""
        with duplicated(at) as tcp:
            if tcp is None:
                self._watched[at.inode] = None
                return
            with suppress(OSError):  # not connected, or not any more
                connection = connection_of(tcp)
                counts = self._counts(connection)
                if counts:
                    _watch(tcp, self._timeout_s)
                self._watched[at.inode] = connection if counts else None


class WorkerLinks(Links):
    """The connections of a worker whose server has this address; cuts those to ps that are in no usable view.

    counts(connection): whether it is one of them.
    """

    def __init__(self, server: str, timeout_s: float, log: Callable[..., None]) -> None:
        self.counts = Peers(server)
        super().__init__(self.counts, timeout_s, log)
        self._ends: dict[str, frozenset[End]] = {}  # of each ps of all views so far, by its address
        self._logged: set[str] = set()  # addresses whose cut connections were logged
        self._lock = threading.Lock()  # guards what follows
        self._usable: frozenset[str] = frozenset()  # addresses of the ps to which connections may lead

    def follow(self, instructions: Instructions) -> None:
        """Allows connections to the ps of this view, if it is usable; all others are cut."""
        self.counts.add(instructions.view)
        usable = () if instructions.phase in UNUSABLE else instructions.view.ps
        self._allow(frozenset(entry.address for entry in usable))

    def give_up(self) -> None:
        """Cuts all connections to ps: this process has left the job."""
        self._allow(frozenset())

    def _allow(self, usable: frozenset[str]) -> None:
        with self._lock:
            self._usable = usable
        self._wake.set()

    def _look(self) -> list[tuple[Descriptor, Connection]]:
        found = super()._look()
        with self._lock:
            usable = self._usable
        kept = frozenset[End]().union(*(self._ends.get(address, ()) for address in usable))
        lost = {end: address for address, ends in self._ends.items() for end in ends - kept}
        leads_to = ((at, lost[connection.remote]) for at, connection in found if connection.remote in lost)
        cut = {address for at, address in leads_to if shut_down(at)}
        self._logged &= set(lost.values())
        for address in cut - self._logged:
            self._log("cut_links", ps=address, reason="it is in no usable view any more")
        self._logged |= cut
        for address in usable - self._ends.keys():
            self._ends[address] = _resolved(address)  # may take long, so connections were cut before
        return found


def _watch(tcp: socket.socket, timeout_s: float) -> None:
    """Sets the kernel's timeout of the connection for acknowledgements of the other machine."""
    every_s = max(1, math.floor(timeout_s / PROBES))
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, every_s)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every_s)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout_s * 1000))


def shut_down(at: Descriptor) -> bool:
    """Ends a connection in both directions, as if the other side had; returns whether it was open."""
    with duplicated(at) as tcp, suppress(OSError):
        if tcp is not None:
            tcp.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _resolved(address: str) -> frozenset[End]:
    """The ends of connections to this address; none if its name cannot be resolved."""
    with suppress(UsageError, OSError):
        host, port = split_address(address)
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        return frozenset(end_of(where) for *_, where in found)
    return frozenset()
