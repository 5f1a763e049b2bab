"""Which checkpoints of a folder are new to a process that looks now and then."""

from __future__ import annotations

from psruntime.graph.checkpoint.listing import CheckpointList


class NewCheckpoints:
    """The checkpoints of the folder `path`, one after the other, as they are listed.

    Those that were there before the first look are old, but for the newest of them.
    """

    def __init__(self, path: str) -> None:
        self._list = CheckpointList(path)
        self._seen: set[str] | None = None

    def next(self) -> str | None:
        """The oldest new one, which is new no more; None if there is none.

        Raises:
            CheckpointError: the list cannot be read.
        """
        listed = self._list.listed()
        if self._seen is None and listed:
            self._seen = set(listed[:-1])
        seen = (self._seen or set()).intersection(listed)
        new = next((path for path in listed if path not in seen), None)
        self._seen = seen | {new} if new else self._seen
        return new

    def is_listed(self, path: str) -> bool:
        """Whether it has not been removed meanwhile."""
        return path in self._list.listed()
