"""The fence: which workers' pushes the ps accept, and whether every ps knows it.

The table of admitted workers has a revision.  A ps writes what it is told, and with it the settings in force, and says
which revision it has written; a worker is fenced in when every ps of the view has written one that contains it.
"""

from __future__ import annotations

from collections.abc import Iterable


class Fence:
    """Revisions of the admitted table.  Invariant: `revision` grows with every change of the table."""

    def __init__(self) -> None:
        self.revision = 0
        self._since: dict[int, int] = {}  # worker incarnation -> revision of its admission

    def admit(self, incarnation: int) -> None:
        self.revision += 1
        self._since[incarnation] = self.revision

    def remove(self, incarnation: int) -> None:
        self.revision += 1
        self._since.pop(incarnation, None)

    def renew(self) -> int:
        """What else the ps write with the table has changed; returns the revision under which they are told."""
        self.revision += 1
        return self.revision

    def encloses(self, incarnation: int, written: Iterable[int]) -> bool:
        """Whether ps that have written these revisions all accept the worker's pushes; False without any."""
        return min(written, default=-1) >= self._since[incarnation]
