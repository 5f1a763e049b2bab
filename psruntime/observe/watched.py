"""A job on a terminal that is refreshed: its events, then as much of the tables as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from rich.console import Console, Group, RenderableType
from rich.text import Text

from psruntime.config import JobConfig
from psruntime.core.members.job_status import JobStatus, MemberStatus
from psruntime.core.members.membership import Role
from psruntime.observe.render import event_table, head_of, more_tables, table_of

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
