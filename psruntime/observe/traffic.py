"""The bytes that the connections of this process have moved, by the kernel's counts: TensorFlow has none.

Linux counts for each TCP socket the bytes that the other side has acknowledged and those received (linux/tcp.h, struct
tcp_info); a process may read those of its own (network/connections.py).

Bytes between the last look at a connection and its close are not in the sums: they are never too large.
Opening and closing one counts as a byte.  Bytes that are not acknowledged, or sent again, do not count as sent.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable

from psruntime.core.members.messages import BytesMoved
from psruntime.network import connections
from psruntime.network.connections import Connection, Descriptor

BYTES = struct.Struct("=120xQQ")  # of struct tcp_info: tcpi_bytes_acked, tcpi_bytes_received (since Linux 4.1)


class TrafficMeter:
    """Sums over all connections that `counts`, since they were opened.  May be called by any thread.

    Connections whose other end is in this process, too, carry nothing over a network and are left out.
    """

    def __init__(self, counts: Callable[[Connection], bool]) -> None:
        self._counts = counts
        self._lock = threading.Lock()
        self._known: dict[int, Connection] = {}  # by inode, of sockets that were there at the last look
        self._last: dict[int, BytesMoved] = {}  # the same, of those that count
        self._sent = self._received = 0
        self._is_counted = False  # some sandboxes have the fields, and leave them empty

    def moved(self) -> BytesMoved | None:
        """The bytes that they have moved until now; None where the kernel has no counts, or nothing has moved yet."""
        with self._lock:
            try:
                found = self._look()
            except (OSError, AttributeError, struct.error):  # no Linux, no /proc, or too old
                return None
            if not self._is_counted:
                return None
            for inode, now in found.items():
                last = self._last.get(inode, BytesMoved())
                self._sent += now.sent - last.sent
                self._received += now.received - last.received
                self._last[inode] = now
            return BytesMoved(self._sent, self._received)

    def _look(self) -> dict[int, BytesMoved]:
        """The bytes of each connection that counts, by inode."""
        known: dict[int, Connection] = {}
        moved: dict[int, BytesMoved] = {}
        sockets = connections.descriptors()
        for at in sockets:
            if at.inode in known:
                continue  # a second descriptor of it
            read = _read(at, self._known.get(at.inode))
            if read is not None:
                known[at.inode], moved[at.inode] = read
        here = {at.inode for at in sockets}
        self._known, self._last = known, {inode: last for inode, last in self._last.items() if inode in here}
        self._is_counted |= any(each.received for each in moved.values())
        ends = set(known.values())
        within = {each for each in ends if Connection(each.remote, each.local) in ends}
        return {inode: m for inode, m in moved.items() if known[inode] not in within and self._counts(known[inode])}


def _read(at: Descriptor, known: Connection | None) -> tuple[Connection, BytesMoved] | None:
    """The connection of this socket, and its bytes; None if it is no TCP connection, or is not there any more.

    Raises:
        AttributeError, struct.error: the system does not count bytes.
    """
    with connections.borrowed(at.number) as tcp:
        if tcp is None:
            return None
        try:
            connection = known or connections.connection_of(tcp)
            info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES.size)
            return (connection, BytesMoved(*BYTES.unpack(info))) if at.is_current() else None
        except OSError:
            return None  # not connected, or closed meanwhile
