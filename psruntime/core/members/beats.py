"""The latest heartbeat of each worker, and which workers are ready for the steps of the mode that comes."""

from __future__ import annotations

from dataclasses import replace

from psruntime.core.members.membership import Membership, Role
from psruntime.core.members.messages import WorkerBeat


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
        """mode: that comes; empty if no worker builds for one.  number: of the change, as in Barrier.builds."""
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


_NONE = WorkerBeat()


class WorkerBeats:
    """By incarnation.  Every question costs the same, however many workers there are.

    Law: a worker that has stopped, or that joined while the view drained, does not step while it drains.
    """

    def __init__(self) -> None:
        self.graphs_revision = 0  # grows whenever a worker that steps may lack another graph than before
        self._beats: dict[int, WorkerBeat] = {}
        self._stopped: set[int] = set()

    def take(self, incarnation: int, beat: WorkerBeat, view: int, draining: bool) -> WorkerBeat:
        """Keeps a heartbeat that arrived in the view of this number, and returns it as it counts.

        A heartbeat that steps while the job drains, of a worker that had stopped, is out of date.
        """
        if draining and incarnation in self._stopped:
            beat = replace(beat, stopped=True)
        elif beat.stopped and beat.view == view:
            self._stopped.add(incarnation)
        else:
            self._stopped.discard(incarnation)
        self.graphs_revision += beat.graphs != self.get(incarnation).graphs
        self._beats[incarnation] = beat
        return beat

    def stop(self, incarnation: int) -> None:
        """Marks a worker as stopped, which has joined while the view drains."""
        self._stopped.add(incarnation)

    def get(self, incarnation: int) -> WorkerBeat:
        """The latest heartbeat; an empty one of a worker that has sent none."""
        return self._beats.get(incarnation, _NONE)

    def has_stopped(self, incarnation: int) -> bool:
        """Whether the worker takes no further step in the view, whatever it did in an older one."""
        return incarnation in self._stopped

    @property
    def stopped(self) -> int:
        """The number of workers that have stopped."""
        return len(self._stopped)

    def begin(self, view: int) -> None:
        """Begins a view, in which workers step again that had stopped before it."""
        self.graphs_revision += 1
        self._stopped = {inc for inc, beat in self._beats.items() if beat.stopped and beat.view == view}

    def forget(self, incarnation: int) -> None:
        """Removes a worker that is gone."""
        self._beats.pop(incarnation, None)
        self.graphs_revision += 1
        self._stopped.discard(incarnation)
