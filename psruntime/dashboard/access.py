"""Who may open the dashboard: under which names, from which pages, with which token.

A foreign web page can make its reader's browser ask the dashboard: it links to it, loads parts of it, or gives a name
of its own the address of this machine (DNS rebinding).  A browser says in Host, Origin and Sec-Fetch-* what it asks
for whom, so these are checked, of every path.

Law: what passes has a Host that is an origin of the dashboard, comes from no other site but by a link, and has the
token, if there is one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import ipaddress
import re
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from psruntime.errors import UsageError

EVERYWHERE = ("", "0.0.0.0", "::")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")
NAMED_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
SIOCGIFADDR = 0x8915  # of Linux: the IPv4 address of an interface

_ORIGIN = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+)(:(?P<port>[0-9]{1,5}))?")


def origins_of(host: str, port: int, more: Sequence[str] = ()) -> list[str]:
    """The origins of a dashboard at `host:port`, as far as they are known here, and those of `more`.

    Bokeh compares them with the Origin of a browser.  It reads an Origin without a port, that is with the default port
    of http or https, as `HOST:80`; it reads an IPv6 address as it is.
    """
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


def origin_of(host: str) -> str:
    """That of a Host, in the form of `origins_of`; empty for what is none."""
    found = _ORIGIN.fullmatch(host)
    return _origin(found["host"], int(found["port"] or 80)) if found else ""


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


@dataclass(frozen=True)
class Access:
    """origins: as of `origins_of`.  token: empty: none is asked for."""

    origins: Sequence[str]
    token: str = field(default="", repr=False)

    @property
    def cookie(self) -> str:
        """What a browser keeps in place of the token; the token cannot be computed from it."""
        return hashlib.sha256(self.token.encode()).hexdigest() if self.token else ""

    def is_token(self, given: str) -> bool:
        """Whether the token is given."""
        return bool(self.token) and hmac.compare_digest(given.encode(), self.token.encode())

    def refusal(
        self, hosts: Sequence[str], headers: Mapping[str, str], token: str, cookie: str
    ) -> tuple[int, str] | None:
        """(status, why) for a request that is refused, or None.

        hosts: every Host that it has.  headers: of which Sec-Fetch-* count.  token, cookie: as given, or empty.
        """
        if len(hosts) != 1 or not hosts[0]:
            return 400, "a request needs one Host"
        if origin_of(hosts[0]) not in self.origins:
            return (
                403,
                "this dashboard has other names; psruntime dashboard --allow-websocket-origin HOST:PORT adds one",
            )
        if not _is_from_here(headers):
            return 403, "a page of another site may link to this dashboard, and no more"
        if self.token and not self.is_token(token) and not hmac.compare_digest(cookie.encode(), self.cookie.encode()):
            return 403, "this dashboard needs its token: open the address that psruntime dashboard printed at its start"
        return None


def _is_from_here(headers: Mapping[str, str]) -> bool:
    """Whether a page of the dashboard, its user or a program asks, or a link was followed; old browsers do not say."""
    if headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin"):
        return True
    return headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
