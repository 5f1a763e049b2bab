"""Shows a running job: phase, each ps, each worker.

psruntime status [HOST:PORT] [--json | --follow | --watch]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from functools import partial

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from psruntime.config import JobConfig
from psruntime.core.members.job_status import JobStatus, MemberStatus
from psruntime.core.members.membership import Role
from psruntime.core.members.view import Phase
from psruntime.dashboard.history import History
from psruntime.errors import EXIT_DONE, PsRuntimeError, UnreachableError, UsageError
from psruntime.observe.outputs import reader_is_gone
from psruntime.observe.render import (
    as_json,
    as_tables,
    event_table,
    head_of,
    more_tables,
    progress_line,
    table_of,
    text_console,
)
from psruntime.process import flags
from psruntime.process.process import end_with_launcher, request_error, usage_error
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.wire.security import load_security

PROG = "psruntime status"
FOLLOW_S = 1.0
FRESH_S = 1.0  # how old a member's report may be
AGAIN_S = 0.1  # between two calls, until all have reported
EVENTS = 8  # the latest


def main(argv: Sequence[str] | None = None) -> int:
    """Asks the coordinator once, or with --follow and --watch until the job is over."""
    parser = flags.Parser(PROG, "Shows a running job.", ("coordinator",), f"{PROG} [HOST:PORT] [flags]")
    flags.add_coordinator_word(parser)
    flags.add_coordinator_flags(parser)
    group = parser.heading(flags.MOST_USED).add_mutually_exclusive_group()
    group.add_argument("--json", action="store_true", help="one line with a JSON object on stdout, for programs")
    group.add_argument("--follow", action="store_true", help="one progress line, kept up to date until the job is over")
    group.add_argument("--watch", action="store_true", help="the tables and what happened, kept up to date likewise")
    flags.add_lifeline_flag(parser)
    arguments = parser.parse_args(argv)
    if arguments.lifeline:
        end_with_launcher()
    try:
        coordinator = flags.coordinator_of(arguments)
        security = load_security(flags.security_config(arguments), serves=False)
        client = CoordinatorClient(coordinator, security)
    except UsageError as error:
        return usage_error(PROG, error)
    if arguments.follow or arguments.watch:
        security.keep_current(lambda *_, **__: None)
    try:
        if arguments.follow:
            return _follow(client)
        if arguments.watch:
            return _watch(client)
        status, job = _fresh(client)
        if arguments.json:
            sys.stdout.write(json.dumps(as_json(status, job)) + "\n")
        else:
            text_console().print(as_tables(status, job))
        return EXIT_DONE
    except PsRuntimeError as error:
        return request_error(PROG, error)
    except KeyboardInterrupt:
        return 130
    finally:
        client.close()


def _fresh(client: CoordinatorClient) -> tuple[JobStatus, JobConfig]:
    """A status in which every member has reported in the last second, if all do so within a second.

    The call makes the coordinator ask the members whose last report is older.
    """
    until_s = time.monotonic() + FRESH_S
    while True:
        status, job = client.get_status()
        if all(m.silent_s <= FRESH_S for m in status.members) or status.phase.over or time.monotonic() >= until_s:
            return status, job
        time.sleep(AGAIN_S)


def _watch(client: CoordinatorClient) -> int:
    """Shows the tables: on a terminal updated in place, elsewhere all of them again for each status."""
    console, history = text_console(), History()
    looks = _looks(client, history)
    next(looks)  # before the screen changes: without an answer there is nothing to show
    with Live(console=console, screen=console.is_terminal, auto_refresh=False, transient=True) as live:
        while True:
            if console.is_terminal:
                live.update(_picture(history, console), refresh=True)
            else:
                console.print(_picture(history))
            if reader_is_gone() or not next(looks, False):
                break
    if console.is_terminal:
        console.print(_picture(history))
    return EXIT_DONE


def _looks(client: CoordinatorClient, history: History) -> Iterator[bool]:
    """One status a second until the job is over: a coordinator that does not answer may be restarted with its ps 0.

    Raises UnreachableError if it does not answer at first, or for longer than the job waits for a ps.
    """
    history.observe(*client.get_status(watches=True), time.time())
    while True:
        yield True
        assert history.status
        if history.status.phase.over:
            return
        time.sleep(FOLLOW_S)
        try:
            history.observe(*client.get_status(watches=True), time.time())
        except UnreachableError as error:
            if history.status.phase is Phase.DRAINING:
                return  # it left with the end of the job
            history.observe_failure(str(error), time.time())
            assert history.job and history.gone_since_s is not None
            if time.time() - history.gone_since_s > history.job.ps_timeout_s:
                raise


def _head(history: History) -> list[Text]:
    """The job's progress, and whether its coordinator does not answer."""
    assert history.status and history.job
    lines = [Text(progress_line(history.status, history.job, history.samples[-1].steps_per_s))]
    if history.gone_since_s is not None:
        since = datetime.fromtimestamp(history.gone_since_s).strftime("%H:%M:%S")
        lines.insert(0, Text(f"not reachable since {since}: {history.gone_reason}", "bold red"))
    return lines


def _picture(history: History, room: Console | None = None) -> RenderableType:
    """The tables that fit into the room."""
    status, job, lines = history.status, history.job, _head(history)
    assert status and job
    events = [(event.at_s, event.kind, event.subject, event.reason) for event in list(history.events)[-EVENTS:]]
    return watched(lines, status, job, events, history.waiting, room)


def _follow(client: CoordinatorClient) -> int:
    """Shows one line: on a terminal updated in place, the last stays; elsewhere a line whenever it changes."""
    console, history, last = Console(), History(), Text()
    looks = _looks(client, history)
    next(looks)
    with console.status("") as line:
        while True:
            text = Text(" | ".join(each.plain for each in _head(history)))  # with reasons as they are, without markup
            if console.is_terminal:
                line.update(text)
            elif text != last:
                console.print(text, soft_wrap=True)
            last = text
            if reader_is_gone() or not next(looks, False):
                break
    if console.is_terminal:
        console.print(last, soft_wrap=True)
    return EXIT_DONE


Event = tuple[float, str, str, str]  # as in event_table
Part = Callable[[int], Sequence[RenderableType]]  # with that many of its rows


def watched(
    first: Sequence[Text],
    status: JobStatus,
    job: JobConfig,
    events: Sequence[Event],
    waiting: Collection[int],
    room: Console | None,
) -> RenderableType:
    """The lines `first`, the head, the events, then the tables.

    waiting: indices of the workers that do not step now.
    room: the most lines.  The ps are first, then the workers that wait or are silent, then the others, and a line with
    the number of those that are left out; then each other table that fits.  None: all is shown.
    """
    workers = [member for member in status.members if member.role is Role.WORKER]
    ps = [member for member in status.members if member.role is Role.PS]
    if room is not None:
        workers.sort(key=lambda each: each.index not in waiting and each.silent_s <= job.lease_s / 2)
    page = _Page(room)
    page.add([*first, head_of(status, job)])
    page.add_most(len(events), lambda count: [event_table(events[-count:])] if count else [])
    page.add_most(len(ps), _members(Role.PS, ps, status, job), spare=2 if workers else 0)
    page.add_most(len(workers), _members(Role.WORKER, workers, status, job))
    for table in more_tables(status):
        page.add_most(1, partial(_times, table))
    return Group(*page.parts)


def _members(role: Role, members: Sequence[MemberStatus], status: JobStatus, job: JobConfig) -> Part:
    def part(count: int) -> list[RenderableType]:
        hidden = len(members) - count
        of = "ps" if role is Role.PS else "workers"
        more = [Text(f"and {hidden} more" if count else f"{hidden} {of}")] if hidden else []
        return [*([table_of(role, status, job, members[:count])] if count or not hidden else []), *more]

    return part


def _times(part: RenderableType, count: int) -> list[RenderableType]:
    return [part] * count


class _Page:
    """Parts, one below the other, up to the height of a console; without one there is room for all."""

    def __init__(self, room: Console | None) -> None:
        self.parts: list[RenderableType] = []
        self._room = room
        self._left = room.height if room else 0  # lines

    def add(self, parts: Sequence[RenderableType]) -> None:
        self.parts += parts
        self._left -= self._lines(parts)

    def add_most(self, rows: int, part: Part, spare: int = 0) -> None:
        """Adds a part with as many of its rows as leave `spare` lines; nothing if it does not fit without rows."""
        low, high = 0, min(rows, max(0, self._left)) if self._room else rows  # a row has a line or more
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits(part(middle), spare):
                low = middle
            else:
                high = middle - 1
        if self._fits(part(low)):
            self.add(part(low))

    def _fits(self, parts: Sequence[RenderableType], spare: int = 0) -> bool:
        return self._room is None or self._lines(parts) <= max(0, self._left - spare)

    def _lines(self, parts: Sequence[RenderableType]) -> int:
        return len(self._room.render_lines(Group(*parts))) if self._room and parts else 0
