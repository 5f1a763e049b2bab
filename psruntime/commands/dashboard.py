"""Shows a running job in a browser: cluster, clocks, staleness, throughput, ledger, rounds, ps, events.

psruntime dashboard [HOST:PORT] [--port 8787]

A process of its own: it asks the coordinator for its status once a second, for any number of browsers, and the job does
not depend on it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

from psruntime.config import JobConfig
from psruntime.core.members.job_status import JobStatus
from psruntime.dashboard.access import LOOPBACK, given_origins
from psruntime.dashboard.drawing import require_bokeh
from psruntime.dashboard.server import Dashboard
from psruntime.errors import EXIT_DONE, PsRuntimeError, UsageError
from psruntime.process import flags
from psruntime.process.process import offline, usage_error
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.wire.job_token import checked_token
from psruntime.rpc.wire.security import Security, load_security

PROG = "psruntime dashboard"
HOST, PORT = "127.0.0.1", 8787
TOKEN = "PSRUNTIME_DASHBOARD_TOKEN"  # in the environment: one that stays the same
TOKEN_BYTES = 32


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM, then returns 0, or Ctrl-C, then 130."""
    arguments = _parser().parse_args(argv)
    try:
        require_bokeh("dashboard")
        fixed = os.environ.get(TOKEN, "")
        if fixed:
            checked_token(os.fsencode(fixed), TOKEN)
        coordinator = flags.coordinator_of(arguments)
        if not 0 <= arguments.port <= 65535:
            raise UsageError(f"port must be from 0 to 65535, got {arguments.port}")
        for origin in arguments.allow_websocket_origin:
            given_origins(origin)
        security = load_security(flags.security_config(arguments), serves=False)
    except UsageError as error:
        return usage_error(PROG, error)
    token = token_of(arguments.host, security, fixed)
    return offline(PROG, lambda: _serve(coordinator, security, token, arguments))


def _parser() -> flags.Parser:
    parser = flags.Parser(
        PROG, "Shows a running job in a browser.", ("coordinator",), f"{PROG} [HOST:PORT] [flags]"
    )  # fmt: skip
    flags.add_coordinator_word(parser)
    flags.add_coordinator_flags(parser)
    most_used = parser.heading(flags.MOST_USED)
    most_used.add_argument(
        "--port",
        type=flags.whole_number,
        default=PORT,
        metavar="N",
        help=f"where it listens; 0 is any free port (default: {PORT})",
    )
    most_used.add_argument(
        "--host", default=HOST, metavar="ADDRESS", help="address at which it listens, 0.0.0.0 for all of this machine; "
        f"browsers need the token in the address that it prints there, and can change nothing (default: {HOST})",
    )  # fmt: skip
    most_used.add_argument(
        "--allow-websocket-origin", action="append", default=[], metavar="HOST[:PORT]", help="a further name under "
        "which browsers open it, as behind a proxy; without a port that of http or https; may be repeated",
    )  # fmt: skip
    return parser


def token_of(host: str, security: Security, fixed: str) -> str:
    """What browsers need; empty where every user of this machine can ask the job itself.

    fixed: the token that is wanted, or empty.
    """
    if not fixed and host in LOOPBACK and not (security.tls or security.tokens):
        return ""
    return fixed or secrets.token_urlsafe(TOKEN_BYTES)


def _serve(coordinator: str, security: Security, token: str, arguments: argparse.Namespace) -> int:
    from tornado.ioloop import IOLoop

    loop = IOLoop()  # and the current one of this thread, which Bokeh uses
    received: list[int] = []

    def on_signal(signum: signal.Signals) -> None:
        received.append(signum)
        loop.stop()

    dashboard = Dashboard(loop, arguments.host, arguments.port, arguments.allow_websocket_origin, token)
    client = CoordinatorClient(coordinator, security)
    security.keep_current(lambda *_, **__: None)
    reachable = _Reachable(dashboard, coordinator)
    poller = Poller(lambda: client.get_status(watches=True), reachable.on_answer, reachable.on_failure)
    events: asyncio.AbstractEventLoop = loop.asyncio_loop
    try:
        for signum in (signal.SIGTERM, signal.SIGINT):
            events.add_signal_handler(signum, on_signal, signum)
        dashboard.start()
        poller.start()
        sys.stdout.write(f"dashboard: {dashboard.url}\n")
        sys.stdout.flush()
        if arguments.host not in LOOPBACK:
            sys.stderr.write(
                f"{PROG}: {arguments.host}:{dashboard.port} is open to other machines: every browser with the token in "
                "the address above sees the job; nothing is encrypted\n"
            )
        loop.start()
    finally:
        client.close()
        poller.stop()
        dashboard.close()
    return EXIT_DONE if received == [signal.SIGTERM] else 128 + signal.SIGINT


class _Reachable:
    """Passes the coordinator's answers on, and reports on stderr, once, when it is gone and when it is back."""

    def __init__(self, dashboard: Dashboard, coordinator: str) -> None:
        self._dashboard, self._coordinator = dashboard, coordinator
        self._is_gone = False

    def on_answer(self, status: JobStatus, job: JobConfig, at_s: float) -> None:
        if self._is_gone:
            self._report(f"coordinator {self._coordinator} answers")
        self._is_gone = False
        self._dashboard.on_answer(status, job, at_s)

    def on_failure(self, reason: str, at_s: float) -> None:
        if not self._is_gone:
            self._report(f"{reason}; it is asked again every second")
        self._is_gone = True
        self._dashboard.on_failure(reason, at_s)

    def _report(self, line: str) -> None:
        sys.stderr.write(f"{PROG}: {line}\n")
        sys.stderr.flush()


EVERY_S = 1.0
END_S = 10.0  # for its thread to end: a call in progress has a shorter deadline

Ask = Callable[[], tuple[JobStatus, JobConfig]]
OnAnswer = Callable[[JobStatus, JobConfig, float], None]
OnFailure = Callable[[str, float], None]


class Poller:
    """Calls `on_answer` with each answer, and `on_failure` with the reason for each failure, both with the time of day.

    ask: raises PsRuntimeError if there is no answer, within its own deadline.  It is called again for ever: a
    coordinator may be restarted.
    """

    def __init__(self, ask: Ask, on_answer: OnAnswer, on_failure: OnFailure, every_s: float = EVERY_S) -> None:
        self._ask, self._on_answer, self._on_failure = ask, on_answer, on_failure
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status-poller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops asking.  Close the client of `ask` first to end a call in progress before its deadline."""
        self._stop.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._stop.is_set():
            self._look()
            due_s = max(due_s + self._every_s, time.monotonic())
            self._stop.wait(max(0.0, due_s - time.monotonic()))

    def _look(self) -> None:
        try:
            answer = self._ask()
        except PsRuntimeError as error:
            if not self._stop.is_set():
                self._on_failure(str(error), time.time())
        else:
            self._on_answer(*answer, time.time())
