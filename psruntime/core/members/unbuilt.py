"""Who is not ready yet for the steps of the mode that comes, and who cannot build their graph."""

from __future__ import annotations

from psruntime.core.members.beats import WorkerBeats
from psruntime.core.members.membership import Membership, Role


class Unbuilt:
    """late: workers, by index, that step and are not ready.  failed: the first of them that cannot build it, and why.

    It is asked at every word of a member while workers build, and goes through all of them only where something of it
    has changed.
    """

    def __init__(self) -> None:
        self.late: list[int] = []
        self.failed: tuple[int, str] | None = None
        self._seen: tuple[object, ...] = ()

    def look(self, mode: str, number: int, members: Membership, beats: WorkerBeats) -> None:
        """mode: that comes; empty if none for which somebody builds.  number: of the change, as in Barrier.builds."""
        now = (mode, number, beats.graphs_revision, beats.stopped, members.count(Role.WORKER))
        if now == self._seen:
            return
        self._seen, self.late, self.failed = now, [], None
        for worker in members.live(Role.WORKER) if mode else ():
            graphs = beats.get(worker.incarnation).graphs
            if graphs.serve(mode) or beats.has_stopped(worker.incarnation):
                continue
            self.late.append(worker.index)
            if graphs.failure and graphs.failed_build == number and self.failed is None:
                self.failed = worker.index, graphs.failure
