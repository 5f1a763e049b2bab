"""Clocks: how many steps each worker has completed in this view, who may start another, and their messages.

Clocks, floor and bound count training steps.  Pure state: the caller locks and waits; this file only decides.

Law: a worker starts a step only while its clock is at most `bound` above the floor.
Law: the floor, the slowest live clock, never falls; so a floor that a worker remembers is safe.
"""

from __future__ import annotations

from dataclasses import dataclass

from psruntime.core.fields import Incarnation, Positive, Reason


@dataclass(frozen=True)
class ClockReport:
    """The steps that a worker has completed in a view, under an incarnation.

    wanted_floor: the floor at which it may step, 0 if it need not wait.  max_wait_s: how long the answer may take
    until the floor is there.
    """

    worker_index: int
    incarnation: Incarnation
    view: Positive
    steps: int
    wanted_floor: int = 0
    max_wait_s: float = 0.0


@dataclass(frozen=True)
class ClockAnswer:
    """The floor of the view, and the reason to wait, which names a worker; empty: none.

    For another view than the present one the floor is 0, which is safe in any.  The interval between two reports is
    among the member's instructions instead: the coordinator may want a report sooner while none is under way.
    """

    floor: int
    reason: Reason = ""


LOCK_STEP = 0  # every worker waits for the slowest
UNBOUNDED = None  # async


def within(bound: int | None, clock: int, floor: int) -> bool:
    """Whether a worker at this clock may start a step.  An older answer's floor will do."""
    return bound is None or clock - floor <= bound


@dataclass(frozen=True)
class Decision:
    """Answer to "may this worker start a step?", with the reason that an operator reads."""

    allowed: bool
    reason: str


class ClockTable:
    """Completed steps per live worker.  One table belongs to one view.

    Invariant: every clock is at or above the floor, and one is at it as soon as anybody is live.
    """

    def __init__(self, bound: int | None) -> None:
        if bound is not None and bound < 0:
            raise ValueError(f"bound must be >= 0 steps or None, got {bound}")
        self.bound = bound
        self._clocks: dict[int, int] = {}
        self._floor = 0
        self._furthest = 0

    @property
    def floor(self) -> int:
        return self._floor

    @property
    def furthest(self) -> int:
        """The largest live clock."""
        return self._furthest

    @property
    def clocks(self) -> dict[int, int]:
        """A copy: worker index -> clock."""
        return dict(self._clocks)

    def clock(self, worker: int) -> int:
        return self._clocks[worker]

    def admit(self, worker: int) -> int:
        """Starts a worker's clock at the floor, so a newcomer never holds the others back; returns it."""
        if worker in self._clocks:
            raise ValueError(f"worker {worker} is already in the clock table")
        self._clocks[worker] = self._floor
        return self._floor

    def report(self, worker: int, clock: int) -> None:
        """Takes a worker's clock; a repeated or late report, being lower, changes nothing."""
        before = self._clocks[worker]
        if clock > before:
            self._clocks[worker] = clock
            self._furthest = max(self._furthest, clock)
            if before == self._floor:  # else another worker is the slowest, as before
                self._raise_floor()

    def remove(self, worker: int) -> None:
        """Drops a worker that takes no further step; the floor may rise, which releases others."""
        if self._clocks.pop(worker) == self._furthest:
            self._furthest = max(self._clocks.values(), default=self._floor)
        self._raise_floor()

    def raise_floor(self, clock: int) -> None:
        """The floor is at this clock, or stays where it is if that is higher; no worker is live."""
        self._floor = max(self._floor, clock)
        self._furthest = self._floor

    def lead(self, worker: int) -> int:
        """Steps that a worker is ahead of the slowest live one."""
        return self._clocks[worker] - self._floor

    def may_start(self, worker: int) -> Decision:
        """Whether the worker may start its next step now."""
        lead = self.lead(worker)
        if self.bound is None:
            return Decision(True, f"{lead} steps ahead, no bound")
        if within(self.bound, self._clocks[worker], self._floor):
            return Decision(True, f"{lead} steps ahead, bound {self.bound}")
        slowest = min(self._clocks, key=lambda w: (self._clocks[w], w))
        return Decision(False, f"{lead} steps ahead of worker {slowest}, bound {self.bound}")

    def _raise_floor(self) -> None:
        if self._clocks:
            self._floor = max(self._floor, min(self._clocks.values()))
