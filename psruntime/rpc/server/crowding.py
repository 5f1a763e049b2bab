"""Which connections to the coordinator are ended, so that one address does not keep the others out.

gRPC accepts connections up to a number, from any address, and makes a handshake with each.  So the sockets of this
process are looked at (network/connections.py), and shut down where there are too many.

Law: no connection is ended while at most half of those that the server accepts are open.
Law: then each address keeps the newest, as many as each other address (LEAVES) and PER_MEMBER for each of its members.
All addresses of an IPv6 network (/64) count as one.
"""

from __future__ import annotations

import ipaddress
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from psruntime.network.connections import DESCRIPTORS, Descriptor, borrowed, connection_of, descriptors, shut_down

FULL = 0.5  # of the connections that a server accepts
LEAVES = (64, 16, 4, 1)  # connections of an address: the largest of these that leaves the server less than full
PER_MEMBER = 8  # a member has at most six, two of them held
LOOK_S = 0.1  # between two looks: a flood opens some hundred connections meanwhile
SPARE, SPARE_WHEN_FULL = 50, 4  # a look takes at most such a part of the time
LOG_S = 10.0  # a flood is a line every so often
NETWORK_BITS = 64

T = TypeVar("T")


def surplus(connections: Sequence[tuple[str, T]], members: Mapping[str, int], most: int) -> list[T]:
    """Those of the connections, oldest first, that are to be ended; each has the address of its other end.

    members: address -> members that have joined from it.  most: that the server accepts.
    """
    limit = int(most * FULL)
    if len(connections) <= limit:
        return []
    of_members = Counter[str]()
    for host, count in members.items():
        of_members[_network(host)] += count
    networks = [(_network(host), each) for host, each in connections]
    ended: list[T] = []
    for leaves in LEAVES:
        kept = Counter[str]()
        ended = []
        for network, each in reversed(networks):
            kept[network] += 1
            if kept[network] > leaves + PER_MEMBER * of_members[network]:
                ended.append(each)
        if len(connections) - len(ended) <= limit:
            break
    return ended[::-1]


def _network(host: str) -> str:
    with suppress(ValueError):
        if ipaddress.ip_address(host).version == 6:
            return str(ipaddress.ip_network((host, NETWORK_BITS), strict=False))
    return host


class Crowding:
    """Ends the surplus of connections to the server at `port`, in a thread of its own, until `close`.

    most: that it accepts.  members: as of `surplus`, now.
    """

    def __init__(
        self, port: int, most: int, members: Callable[[], Mapping[str, int]], log: Callable[..., None]
    ) -> None:
        self._port, self._most, self._members, self._log = port, most, members, log
        self._hosts: dict[int, str] = {}  # by inode, oldest first; empty: no connection to the server
        self._ended, self._quiet_until_s = 0, 0.0
        self._closed = threading.Event()

    def start(self) -> None:
        """Starts to look, where the system lists the sockets."""
        if os.path.isdir(DESCRIPTORS):
            threading.Thread(target=self._keep, name="crowding", daemon=True).start()

    def close(self) -> None:
        """Ends the thread soon.  May be repeated."""
        self._closed.set()

    def _keep(self) -> None:
        wait_s = LOOK_S
        while not self._closed.wait(wait_s):
            began_s = time.monotonic()
            is_full = True
            with suppress(OSError):
                is_full = self.look()
            wait_s = max(LOOK_S, (SPARE_WHEN_FULL if is_full else SPARE) * (time.monotonic() - began_s))

    def look(self) -> bool:
        """Ends the surplus of now; returns whether there may have been one."""
        if len(os.listdir(DESCRIPTORS)) <= self._most * FULL:
            return False
        here = {at.inode: at for at in descriptors()}
        known = {inode: host for inode, host in self._hosts.items() if inode in here}
        self._hosts = known | {inode: self._host_at(at) for inode, at in here.items() if inode not in known}
        connections = [(host, here[inode]) for inode, host in self._hosts.items() if host]
        ended = [each for each in surplus(connections, self._members(), self._most) if shut_down(each)]
        gone = {*ended}
        self._report(len(ended), Counter(host for host, each in connections if each in gone))
        return True

    def _host_at(self, at: Descriptor) -> str:
        """The address at the other end of a connection to the server; empty if it is none."""
        with borrowed(at.number) as tcp:
            if tcp is not None:
                with suppress(OSError):
                    connection = connection_of(tcp)
                    if connection.local.port == self._port and at.is_current():
                        return connection.remote.host
        return ""

    def _report(self, ended: int, hosts: Counter[str]) -> None:
        self._ended += ended
        now_s = time.monotonic()
        if ended and now_s >= self._quiet_until_s:
            host, _ = hosts.most_common(1)[0]
            reason = f"more than half of {self._most} connections to the coordinator are open"
            self._log("connections_ended", connections=self._ended, most_from=host, reason=reason)
            self._ended, self._quiet_until_s = 0, now_s + LOG_S
