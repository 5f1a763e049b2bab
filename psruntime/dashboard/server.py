"""The dashboard's server: one history for all browsers.

Everything here belongs to the thread of one event loop; `on_answer` and `on_failure` may be called by any other.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from psruntime.config import JobConfig
from psruntime.core.members.job_status import JobStatus
from psruntime.dashboard.access import EVERYWHERE, Access, bracketed, origins_of
from psruntime.dashboard.clocks_page import clocks_page, rounds_page
from psruntime.dashboard.cluster_page import cluster_page, ps_page
from psruntime.dashboard.drawing import STYLE as COLOURS_AND_CARDS
from psruntime.dashboard.history import History
from psruntime.dashboard.page import STYLE, THEMES, Head, Page, PageKind, template_of
from psruntime.dashboard.updates_page import events_page, ledger_page, progress_page, staleness_page
from psruntime.errors import UsageError

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
MOST_BYTES = 1 << 10  # of a request's body: no page has one
PING_S = 300.0  # a browser that has not answered a ping for so long is disconnected; a phone may sleep for minutes


class Dashboard:
    """Serves the pages of a history at `host:port`, until `close`; port 0 lets the system choose, and `port` is that.

    origins: `HOST` or `HOST:PORT` of further addresses under which browsers may open it, beside those of this machine.
    token: browsers need it, in the first address that they open; empty: they need none.

    Raises:
        UsageError: the address is in use, or not one of this machine.
    """

    def __init__(self, loop: Any, host: str, port: int, origins: Sequence[str] = (), token: str = "") -> None:
        from bokeh.application import Application
        from bokeh.application.handlers import FunctionHandler
        from bokeh.server.server import BaseServer
        from bokeh.server.tornado import BokehTornado
        from bokeh.server.util import bind_sockets
        from tornado.httpserver import HTTPServer

        from psruntime.dashboard.guard import NONCE_MARK, Guard

        logging.getLogger("bokeh").setLevel(logging.ERROR)  # it would warn of every browser that is closed
        self.history = History()
        self._loop = loop
        self._open: dict[Any, tuple[Head, Page]] = {}  # document of a browser -> its content
        self._to_show: set[Any] = set()  # documents that get the latest status as soon as their browser is ready
        self._template = template_of(KINDS)
        self._nonce = f'nonce="{NONCE_MARK}"'
        applications = {f"/{kind.slug}": Application(FunctionHandler(self._maker(kind))) for kind in KINDS}
        bare = host.strip("[]")
        listening = _listen(host, bare, port)
        self.port = listening.getsockname()[1]
        listening.close()  # Bokeh opens its own; with port 0 this is the one that was free
        try:
            sockets, _ = bind_sockets("" if bare in EVERYWHERE else bare, self.port)
        except OSError as error:
            raise UsageError(_refusal(host, self.port, error)) from None
        access = Access(origins_of(host, self.port, origins), token)
        application = BokehTornado(
            applications, use_index=False, extra_websocket_origins=access.origins,
            include_headers=[], include_cookies=[],  # Bokeh would put them into its pages
            websocket_ping_interval=PING_S, websocket_ping_timeout=PING_S,
        )  # fmt: skip
        http = HTTPServer(Guard(application, access, f"psruntime-dashboard-{self.port}"), max_body_size=MOST_BYTES)
        http.add_sockets(sockets)
        self._server = BaseServer(loop, application, http)
        shown = "localhost" if bare in EVERYWHERE else bracketed(host)
        self.url = f"http://{shown}:{self.port}/" + (f"?token={quote(token, safe='')}" if token else "")

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
                style=COLOURS_AND_CARDS + STYLE, nonce=self._nonce,
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
