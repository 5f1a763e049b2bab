"""How long the end of a job may take, and who is cut off because it takes longer.

A job that drains waits for two things: that every worker stops, then that the chief closes, which is to write the last
checkpoint and to evaluate.  Each wait may take `limit_s`, the chief's from the last part that it has told of.  Who
takes longer is cut off: its lease ends, the ps refuse what it still pushes, and the end goes on without it.

Law: who joins while the job drains takes no step in the view, so it counts as stopped (coordinator.py admits it so).
Law: a process that was cut off is not chief again in this drain.  So it ends: with another chief, or without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psruntime.core.coordinator.ending import all_stopped
from psruntime.core.members.membership import Member, Role
from psruntime.core.members.view import Phase, listed
from psruntime.core.rounds.rounds import NAMED

if TYPE_CHECKING:
    from psruntime.core.coordinator.coordinator import Coordinator


Waits = tuple[int, object]  # view number, and what is waited for in it: another one is another wait
A_WORKER = "a worker"
TO_STOP = "to stop"


class Draining:
    """What the end waits for, since when, and who was cut off.  Times are those of the coordinator, in seconds."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._waits: Waits | None = None  # None while the job does not drain
        self._since_s = self._now_s = 0.0
        self._cut_off: dict[tuple[int, str], str] = {}  # (worker index, address) -> why

    def advance(self, now_s: float, pause_s: float) -> None:
        """Moves the time on; for `pause_s` of it nobody judged, so that counts for nothing."""
        self._now_s = max(self._now_s, now_s)
        self._since_s += pause_s

    def overdue(self, c: Coordinator) -> list[tuple[Member, str]]:
        """Who is to be cut off now, and why.  Called after each `advance`: it notices what is waited for."""
        waits = _what_for(c)
        if waits != self._waits:
            self._waits, self._since_s = waits, self._now_s
            if waits is None:
                self._cut_off = {}
        if not self.is_late:
            return []
        verb = "finish" if all_stopped(c) else "stop"
        reason = f"did not {verb} within {self.limit_s:g} s (drain_timeout_s)"
        late = _waited_for(c)
        self._cut_off.update(((worker.index, worker.address), f"{worker.name} {reason}") for worker in late)
        return [(worker, reason) for worker in late]

    @property
    def is_late(self) -> bool:
        """Whether what is waited for has taken too long."""
        return self._waits is not None and self.waited_s >= self.limit_s

    @property
    def waited_s(self) -> float:
        """For how long the same is waited for."""
        return self._now_s - self._since_s if self._waits is not None else 0.0

    def bars(self, worker: Member) -> bool:
        """Whether this process was cut off, so is not chief again."""
        return (worker.index, worker.address) in self._cut_off

    def progress(self, c: Coordinator) -> str:
        """What the end waits for, for how long of how long."""
        late = listed(worker.index for worker in _waited_for(c))
        what = f"worker {late} to {'close' if all_stopped(c) else 'stop'}" if late else "a worker that closes"
        return f"waiting for {what}, for {self.waited_s:.0f} s of at most {self.limit_s:g} s"

    @property
    def why_hopeless(self) -> str:
        """Why there is no end but a failure, for a job that is late and has no chief."""
        nobody = f"nobody came within {self.limit_s:g} s (drain_timeout_s)"
        why = [nobody] if self._waits and self._waits[1] == A_WORKER else []
        return f"no worker is left to write the last checkpoint: {', '.join([*why, *self._cut_off.values()][:NAMED])}"


def _what_for(c: Coordinator) -> Waits | None:
    """What the end waits for: a worker, all to stop, or the next part of what the chief does."""
    if c.phase is not Phase.DRAINING:
        return None
    chief = None if c.chief is None else c.members.holder(Role.WORKER, c.chief)
    if chief is None:
        return c.view.number, A_WORKER
    if not all_stopped(c):
        return c.view.number, TO_STOP
    return c.view.number, (chief.incarnation, c.worker_beats.get(chief.incarnation).closed_parts)


def _waited_for(c: Coordinator) -> list[Member]:
    """The workers for whom the end waits."""
    workers = c.members.live(Role.WORKER)
    if all_stopped(c):
        return [worker for worker in workers if worker.index == c.chief]
    return [worker for worker in workers if not c.worker_beats.has_stopped(worker.incarnation)]
