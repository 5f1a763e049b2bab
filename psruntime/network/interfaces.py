"""The one interface of this machine at which a server may be reached.

TensorFlow's server listens on all interfaces, whatever address it is given.  SO_BINDTODEVICE on its listening socket,
which an ordinary user may set once (Linux 5.7 or newer), lets only packets in that arrive at one interface.  A packet
of this machine to its own address arrives, by Linux's count, at the interface that owns the address, so processes on
one machine still reach each other at the address that the others have.

TensorFlow listens some milliseconds before the option can be set.  A connection from then keeps no device, by which it
is known, and is ended: one that was accepted then at once, one that the kernel had not finished when it is.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from psruntime.config.process import split_address
from psruntime.errors import UsageError
from psruntime.network.connections import descriptors, duplicated, end_of
from psruntime.network.hosts import is_loopback

ANY = "any"
LOOPBACK = "lo"
WAIT_S = 1.0  # for a datagram to this machine itself
DEVICE_BYTES = 16  # of the name of an interface (IFNAMSIZ)
LOOK_S = 1.0  # between two looks for connections from before
HALF_OPEN_S = 70.0  # the kernel forgets one that its other end does not complete after 63 s (tcp_synack_retries)
# For each family: level, option and answer by which a socket says at which interface a datagram arrived, and where the
# index is in the answer.  8 is IP_PKTINFO of linux/in.h.
PACKET_INFO = {
    socket.AF_INET: (socket.IPPROTO_IP, 8, 8, 0),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 49, 50, 16),  # IPV6_RECVPKTINFO, IPV6_PKTINFO
}


def interface_for(host: str, coordinator: str, wanted: str = "") -> str:
    """The name of the interface at which others reach a server at `host`; empty: any.

    coordinator: host:port.  wanted: the setting --interface; empty to find it.

    Raises:
        UsageError: there is no such interface, or none has the address.
    """
    if wanted == ANY:
        return ""
    if wanted:
        try:
            socket.if_nametoindex(wanted)
        except OSError as error:
            known = ", ".join(sorted(name for _, name in socket.if_nameindex()))
            raise UsageError(f"--interface {wanted}: this machine has {known}") from error
        return wanted
    is_local = is_loopback(split_address(coordinator)[0])
    found = owner_of(host)
    if found == LOOPBACK and not (is_loopback(host) and is_local):
        raise UsageError(
            f"{host} is an address of this machine alone, and the coordinator is at {coordinator}; give the address at "
            "which the others reach this process as --host, or its interface as --interface NAME"
        )
    if not found:
        raise UsageError(
            f"no interface of this machine has the address {host}, so TensorFlow's port would be open on all of them "
            "(docs/security.md); give the one at which the others come in as --interface NAME, or --interface any"
        )
    return found


def owner_of(host: str) -> str:
    """The interface that owns an address of this machine; empty if none does.

    The kernel is asked: a datagram from the address to itself arrives at its owner (IP_PKTINFO in ip(7)).
    """
    with suppress(OSError, UnicodeError):
        for family, _, _, _, where in socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_DGRAM):
            with suppress(OSError):
                return _arrives_at(family, where)
    return ""


def _arrives_at(family: int, where: tuple[object, ...]) -> str:
    level, option, kind, place = PACKET_INFO[socket.AddressFamily(family)]
    with socket.socket(family, socket.SOCK_DGRAM) as own:
        own.bind(where)
        own.settimeout(WAIT_S)
        own.setsockopt(level, option, 1)
        own.sendto(b"", own.getsockname())
        _, parts, _, _ = own.recvmsg(1, socket.CMSG_SPACE(32))
        found = (struct.unpack_from("=I", data, place)[0] for at, what, data in parts if (at, what) == (level, kind))
        return socket.if_indextoname(next(found, 0))


def close_to_others(port: int, interface: str) -> None:
    """Lets this process's server at the port be reached at this interface alone; ends connections from before, in a
    thread also those that are accepted later.

    Raises:
        OSError: the system has no means for it.
    """
    found = False
    for tcp in _at_port(port):
        if tcp.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
            found = True
    if not found:
        raise OSError(f"no socket of this process listens on port {port}")
    _end_earlier(port)
    threading.Thread(target=_end_earlier_until, args=(port, time.monotonic() + HALF_OPEN_S), daemon=True).start()


def _end_earlier_until(port: int, until_s: float) -> None:
    while time.monotonic() < until_s:
        time.sleep(LOOK_S)
        with suppress(OSError):
            _end_earlier(port)


def _end_earlier(port: int) -> None:
    """Ends connections to the port from before it was closed."""
    for tcp in _at_port(port):
        with suppress(OSError):
            if came_before(tcp):
                tcp.shutdown(socket.SHUT_RDWR)


def came_before(tcp: socket.socket) -> bool:
    """Whether a connection to a server of one interface is from before that was set.  OSError: it is closed."""
    return not tcp.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, DEVICE_BYTES).rstrip(b"\0")


def _at_port(port: int) -> Iterator[socket.socket]:
    """The sockets of this process whose own end has this port."""
    for at in descriptors():
        with duplicated(at) as tcp:
            if tcp is not None and end_of(tcp.getsockname()).port == port:
                yield tcp
