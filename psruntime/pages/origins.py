"""The names under which a browser may open the dashboard, as Bokeh compares them with the Origin of a browser.

Bokeh reads an Origin without a port, that is with the default port of http or https, as `HOST:80`; it reads an IPv6
address as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import re
import socket
import struct
from collections.abc import Iterator, Sequence

from psruntime.errors import UsageError

EVERYWHERE = ("", "0.0.0.0", "::")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")
NAMED_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
SIOCGIFADDR = 0x8915  # of Linux: the IPv4 address of an interface

_ORIGIN = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+)(:(?P<port>[0-9]{1,5}))?")


def origins_of(host: str, port: int, more: Sequence[str] = ()) -> list[str]:
    """The origins of a dashboard at `host:port`, as far as they are known here, and those of `more`."""
    if host in LOOPBACK:
        names = [*NAMED_LOOPBACK]
    elif host.strip("[]") in EVERYWHERE:
        names = [*NAMED_LOOPBACK, socket.gethostname(), *own_addresses()]
    else:
        names = [host]
    own = (_origin(bracketed(name), port) for name in names)
    return list(dict.fromkeys([*own, *(origin for text in more for origin in given_origins(text))]))


def given_origins(text: str) -> list[str]:
    """The origins of `HOST`, which has the default port of its scheme, or `HOST:PORT`.

    Raises:
        UsageError: it is neither.
    """
    found = _ORIGIN.fullmatch(text)
    port = int(found["port"] or 80) if found else 0
    if not found or not 0 < port <= 65535:
        raise UsageError(f"--allow-websocket-origin '{text}' is not HOST or HOST:PORT, for example dash.example.com")
    defaults = [_origin(found["host"], 80)] if port == 443 else []  # https has no port then, http has
    return [*defaults, _origin(found["host"], port)]


def bracketed(host: str) -> str:
    """The host as in an address with a port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def own_addresses() -> list[str]:
    """The addresses of this machine's network interfaces, as far as the system lists them."""
    return list(dict.fromkeys(_own_addresses()))


def _own_addresses() -> Iterator[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # one without an IPv4 address
                found = fcntl.ioctl(asking.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                yield socket.inet_ntoa(found[20:24])
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as table:  # without IPv6 there is none
        for line in table:
            address = ipaddress.IPv6Address(int(line.split()[0], 16))
            if not address.is_link_local:  # a browser cannot name it
                yield str(address)


def _origin(host: str, port: int) -> str:
    return host.lower() if port == 80 and host.startswith("[") else f"{host.lower()}:{port}"
