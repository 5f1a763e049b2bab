"""Processes of another job that asked for a place in this one: its coordinator is where theirs was.

Each is refused.  Who it was is kept for the log and the status, until its place is taken by a process of this job:
somebody may be waiting for it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager

from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Join
from psruntime.errors import OtherJobError

KEPT = 64  # places; what asks for more of them is no cluster of ours
NAMED = 3  # in one line of the status


class Strangers:
    """`note(name, **facts)` tells what an operator wants to read: of each place once, however often it is asked for."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self._texts: dict[tuple[Role, int], str] = {}  # by place

    @contextmanager
    def noted(self, join: Join) -> Iterator[None]:
        """Remembers a join that is refused for its job in the block."""
        place = (join.role, join.index)
        try:
            yield
        except OtherJobError as error:
            if place not in self._texts and len(self._texts) < KEPT:
                self._texts[place] = str(error)
                self._note("refused", member=f"{join.role} {join.index}", reason=error)
            raise

    def forget(self, role: Role, index: int) -> None:
        """The place is taken by a process of this job."""
        self._texts.pop((role, index), None)

    def named(self, role: Role, indices: Container[int]) -> list[str]:
        """What there is to say of those who asked for these places, as far as a line has room."""
        return [text for (r, index), text in sorted(self._texts.items()) if r is role and index in indices][:NAMED]
