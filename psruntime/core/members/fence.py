"""The fence: the workers whose pushes the ps accept, and the revision that every ps has written.

The table of admitted workers has a revision.  A ps writes the table of its instructions, and with it the settings in
force, and reports its revision; a worker is fenced in when every ps of the view has written one that contains it.
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
        """The new revision, after a change of the settings that the ps write with the table."""
        self.revision += 1
        return self.revision

    def encloses(self, incarnation: int, written: Iterable[int]) -> bool:
        """Whether ps that have written these revisions all accept the worker's pushes; False without any."""
        return min(written, default=-1) >= self._since[incarnation]
