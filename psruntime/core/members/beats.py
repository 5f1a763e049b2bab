"""What the live workers said last, and who of them takes no further step in the view."""

from __future__ import annotations

from dataclasses import replace

from psruntime.core.members.messages import WorkerBeat

_NONE = WorkerBeat()


class WorkerBeats:
    """By incarnation.  Every question costs the same, however many workers there are.

    Law: who has stopped, or who came when the view drained already, does not step while it drains.
    """

    def __init__(self) -> None:
        self.graphs_revision = 0  # grows whenever a worker that steps may lack another graph than before
        self._beats: dict[int, WorkerBeat] = {}
        self._stopped: set[int] = set()

    def take(self, incarnation: int, beat: WorkerBeat, view: int, draining: bool) -> WorkerBeat:
        """Keeps a beat, told in the view of this number, and returns what it says.

        One that steps while the job drains, of a worker that had stopped, was overtaken on its way.
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
        """A worker has come while the view drains."""
        self._stopped.add(incarnation)

    def get(self, incarnation: int) -> WorkerBeat:
        """The latest one; of a worker that has not said anything, an empty one."""
        return self._beats.get(incarnation, _NONE)

    def has_stopped(self, incarnation: int) -> bool:
        """Whether it takes no further step in the view; that it had stopped in an older one means nothing."""
        return incarnation in self._stopped

    @property
    def stopped(self) -> int:
        """How many have stopped."""
        return len(self._stopped)

    def begin(self, view: int) -> None:
        """A new view, in which those step again that had stopped before it."""
        self.graphs_revision += 1
        self._stopped = {inc for inc, beat in self._beats.items() if beat.stopped and beat.view == view}

    def forget(self, incarnation: int) -> None:
        """The worker is gone."""
        self._beats.pop(incarnation, None)
        self.graphs_revision += 1
        self._stopped.discard(incarnation)
