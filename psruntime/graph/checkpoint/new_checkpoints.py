"""Which checkpoints of a folder are new since a process last looked."""

from __future__ import annotations

from psruntime.graph.checkpoint.listing import CheckpointList, step_of, written_ns

Written = tuple[int | None, int]  # step and time: a step may be saved again, and a file renamed


class NewCheckpoints:
    """The checkpoints of the folder `path`, one after the other, as they are listed.

    Those that were there before the first look are old, but for the newest of them.
    """

    def __init__(self, path: str) -> None:
        self._list = CheckpointList(path)
        self._seen: set[Written] | None = None

    def next(self) -> str | None:
        """The oldest new one, which is new no more; None if there is none.

        Raises:
            CheckpointError: the list cannot be read.
        """
        listed = {(step_of(path), written_ns(path)): path for path in self._list.listed()}
        if self._seen is None and listed:
            self._seen = set(list(listed)[:-1])
        seen = (self._seen or set()).intersection(listed)
        new = next((written for written in listed if written not in seen), None)
        if new is None:
            return None
        self._seen = seen | {new}
        return listed[new]

    def is_listed(self, path: str) -> bool:
        """Whether it has not been removed meanwhile.

        Raises:
            CheckpointError: the list cannot be read.
        """
        return path in self._list.listed()
