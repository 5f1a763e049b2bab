"""The dashboard's server: one history for all browsers, and the names under which these may open it.

Everything here belongs to the thread of one event loop; `on_answer` and `on_failure` may be called by any other.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import logging
import os
import re
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from psruntime.config import JobConfig
from psruntime.core.members.job_status import JobStatus
from psruntime.dashboard.clocks_page import clocks_page, rounds_page
from psruntime.dashboard.cluster_page import cluster_page, ps_page
from psruntime.dashboard.drawing import STYLE as COLOURS_AND_CARDS
from psruntime.dashboard.history import History
from psruntime.dashboard.page import STYLE, THEMES, Head, Page, PageKind, template_of
from psruntime.dashboard.updates_page import events_page, ledger_page, progress_page, staleness_page
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


KINDS = (
    PageKind("", "Cluster", cluster_page),
    PageKind("clocks", "Clocks", clocks_page),
    PageKind("staleness", "Staleness", staleness_page),
    PageKind("progress", "Progress", progress_page),
    PageKind("ledger", "Ledger", ledger_page),
    PageKind("rounds", "Rounds", rounds_page),
    PageKind("ps", "Memory and traffic", ps_page),
    PageKind("events", "Events", events_page),
)
PING_S = 300.0  # a browser that has not answered a ping for so long is disconnected; a phone may sleep for minutes


class Dashboard:
    """Serves the pages of a history at `host:port`, until `close`; port 0 lets the system choose, and `port` is that.

    origins: `HOST` or `HOST:PORT` of further addresses under which browsers may open it, beside those of this machine.

    Raises:
        UsageError: the address is in use, or not one of this machine.
    """

    def __init__(self, loop: Any, host: str, port: int, origins: Sequence[str] = ()) -> None:
        from bokeh.application import Application
        from bokeh.application.handlers import FunctionHandler
        from bokeh.server.server import Server

        logging.getLogger("bokeh").setLevel(logging.ERROR)  # it would warn of every browser that is closed
        self.history = History()
        self._loop = loop
        self._open: dict[Any, tuple[Head, Page]] = {}  # document of a browser -> its content
        self._to_show: set[Any] = set()  # documents that get the latest status as soon as their browser is ready
        self._template = template_of(KINDS)
        applications = {f"/{kind.slug}": Application(FunctionHandler(self._maker(kind))) for kind in KINDS}
        bare = host.strip("[]")
        listening = _listen(host, bare, port)
        self.port = listening.getsockname()[1]
        listening.close()  # Bokeh opens its own; with port 0 this is the one that was free
        try:
            self._server = Server(
                applications, io_loop=loop, address="" if bare in EVERYWHERE else bare, port=self.port,
                use_index=False,
                websocket_ping_interval=PING_S, websocket_ping_timeout=PING_S,
            )  # fmt: skip
        except OSError as error:
            raise UsageError(_refusal(host, self.port, error)) from None
        # Its own flag for this refuses IPv6.
        self._server._tornado.websocket_origins.update(origins_of(host, self.port, origins))
        shown = "localhost" if bare in EVERYWHERE else bracketed(host)
        self.url = f"http://{shown}:{self.port}/"

    def start(self) -> None:
        """Starts to serve once the loop runs."""
        self._server.start()

    def close(self) -> None:
        """Stops serving.  May be called before or after the loop has run."""
        self._server.stop(wait=False)

    def on_answer(self, status: JobStatus, job: JobConfig, at_s: float) -> None:
        """Adds an answer of the coordinator.  From any thread."""
        self._loop.add_callback(self._changed, lambda: self.history.observe(status, job, at_s))

    def on_failure(self, reason: str, at_s: float) -> None:
        """Notes that it has not answered.  From any thread."""
        self._loop.add_callback(self._changed, lambda: self.history.observe_failure(reason, at_s))

    @property
    def browsers(self) -> int:
        """Pages that are open now."""
        return len(self._open)

    def _changed(self, change: Any) -> None:
        """Updates all documents; one whose browser still reads the last status gets the latest afterwards."""
        change()
        for document in self._open.keys() - self._to_show:
            self._to_show.add(document)
            document.add_next_tick_callback(lambda document=document: self._show(document))

    def _maker(self, kind: PageKind) -> Any:
        def make(document: Any) -> None:
            head, page = Head(), kind.make()
            self._open[document] = head, page
            document.on_session_destroyed(lambda _: self._forget(document))
            for card in page.cards:
                card.model.name = card.name
                document.add_root(card.model)
            document.add_root(head.model)
            theme = _theme_of(document)
            document.title = kind.title
            document.template = self._template
            document.template_variables.update(
                page=kind, cards=page.cards, theme=theme, query=f"?theme={theme}" if theme else "",
                style=COLOURS_AND_CARDS + STYLE,
            )  # fmt: skip
            self._show(document)

        return make

    def _forget(self, document: Any) -> None:
        self._open.pop(document, None)
        self._to_show.discard(document)

    def _show(self, document: Any) -> None:
        self._to_show.discard(document)
        if document in self._open:
            head, page = self._open[document]
            head.show(self.history)
            page.show(self.history)


def _theme_of(document: Any) -> str:
    """The theme that the address asks for; empty: as the browser prefers."""
    request = document.session_context.request if document.session_context else None
    asked = request.arguments.get("theme", [b""])[0].decode("ascii", "replace") if request else ""
    return asked if asked in THEMES else ""


def _listen(host: str, bare: str, port: int) -> socket.socket:
    """A socket that listens there; fails if the address is not available."""
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((bare, port))
        listening.listen()
    except (OSError, OverflowError) as error:
        listening.close()
        raise UsageError(_refusal(host, port, error)) from None
    return listening


def _refusal(host: str, port: int, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"address {host}:{port} is in use; choose another port with --port"
    number = error.errno if isinstance(error, OSError) else None
    return f"address {host}:{port} cannot be listened at: {os.strerror(number) if number and number > 0 else error}"
