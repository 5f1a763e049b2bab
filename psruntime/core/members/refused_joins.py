"""Processes of another job that asked to join this one: its coordinator is where theirs was.

Each is refused.  Who it was is kept for the log and the status, until a process of this job has its index: somebody
may be waiting for it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager

from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Join
from psruntime.errors import OtherJobError

KEPT = 64  # indices; who asks for more of them is no cluster of ours
NAMED = 3  # in one line of the status


class RefusedJoins:
    """`note(name, **facts)` is called once for each index, however often it is asked for."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self._texts: dict[tuple[Role, int], str] = {}  # by role and index

    @contextmanager
    def noted(self, join: Join) -> Iterator[None]:
        """Remembers a join that is refused for its job in the block."""
        key = (join.role, join.index)
        try:
            yield
        except OtherJobError as error:
            if key not in self._texts and len(self._texts) < KEPT:
                self._texts[key] = str(error)
                self._note("refused", member=f"{join.role} {join.index}", reason=error)
            raise

    def forget(self, role: Role, index: int) -> None:
        """A process of this job has the index now."""
        self._texts.pop((role, index), None)

    def named(self, role: Role, indices: Container[int]) -> list[str]:
        """The refused joins for these indices, in at most one line; for people."""
        return [text for (r, index), text in sorted(self._texts.items()) if r is role and index in indices][:NAMED]
