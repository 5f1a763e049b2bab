"""The bound that the coordinator chooses, in a job with --bound auto:LOW-HIGH.

A larger bound lets workers continue while another one is late, and makes updates staler.  So the bound is the
smallest one of the range with which the workers would be nearly as fast as with the largest: their last steps, as long
as each took without waiting for others, are played under one bound after the other.  A worker that is slower than the
others in every step holds them up under any bound, so on its account none is raised.

After DSSP (Zhao, Zhou, Liu, Xu and Li, Dynamic stale synchronous parallel distributed training for deep learning, ICDCS
2019), whose server predicts from the times between two pushes, each time that the fastest worker is at the lower end of
a range, how many more steps it may take.  Here one bound is for all workers, and changes rarely, so that the ps can
enforce the limit of staleness that belongs to it.

Law: a bound is chosen from steps that were taken under the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from psruntime.config.values import BoundRange
from psruntime.core.members.membership import JudgedClock
from psruntime.core.members.messages import STEP_TIMES

STEPS = STEP_TIMES  # of each worker that are played; more would see a change later, fewer take noise for one
FEWEST = 10  # a worker with fewer steps does not count
STEPS_BETWEEN = 64  # of the slowest worker from one choice to the next; a change costs all about one of its steps
SECONDS_BETWEEN = 5.0  # at least, and two heartbeats
MOST_PLAYED = 64  # workers, the slowest; the others hardly hold anybody up
TOO_SLOW, GOOD = 0.02, 0.005  # part of the time of the largest bound that another loses: to leave it, and to take it

Durations = Sequence[Sequence[float]]  # of each worker, in seconds, the newest last


class AdaptiveBound:
    """Of one job.  `note(name, **facts)` takes what an operator wants to read.

    reported_every_s: seconds from one report of a worker to the next.
    """

    def __init__(
        self, within: BoundRange, reported_every_s: float, note: Callable[..., None], clock: JudgedClock
    ) -> None:
        self.range = within
        self._between_s = max(SECONDS_BETWEEN, 2 * reported_every_s)  # so each worker has reported meanwhile
        self._note = note
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """The bound is set by an operator or a schedule."""
        self._chosen: int | None = None  # under the bound that is in force; None: not looked yet
        self._of = (-1, 0, 0)  # that bound, the number of the settings and the view in which it was looked last
        self._next_floor, self._next_s = 0, 0.0  # from which on it is looked again
        self._why = (-1, "")  # a bound that was chosen, and the reason

    def reason(self, bound: int | None) -> str:
        """Why it is the bound in force; empty if it was not chosen."""
        return self._why[1] if bound == self._why[0] else ""

    def wanted(self, bound: int, revision: int, view: int, floor: int, steps: Callable[[], Durations]) -> int:
        """The bound to be in force, where `bound` is.  It stays the same until that is so.

        revision: of the settings in force, before which steps do not count: none may have been made.
        floor: of the view of this number.  steps: how long the last steps of each live worker took.
        """
        if self._of != (bound, revision, view):
            self._of, self._chosen = (bound, revision, view), None
            self._look_later(floor)
        elif self._chosen in (None, bound) and floor >= self._next_floor and self._clock.now_s >= self._next_s:
            self._look_later(floor)
            self._choose(bound, steps())
        return bound if self._chosen is None else self._chosen

    def _look_later(self, floor: int) -> None:
        self._next_floor, self._next_s = floor + STEPS_BETWEEN, self._clock.now_s + self._between_s

    def _choose(self, bound: int, steps: Durations) -> None:
        if choice := choose(self.range, bound, steps):
            self._chosen, self._why = choice[0], choice
            if self._chosen != bound:
                self._note("bound_chosen", bound=self._chosen, was=bound, reason=choice[1])


def choose(within: BoundRange, bound: int, steps: Durations) -> tuple[int, str] | None:
    """The next bound, and why; None: too little is known."""
    known = sorted((each[-STEPS:] for each in steps if len(each) >= FEWEST), key=fmean)[-MOST_PLAYED:]
    if len(known) < 2:
        return None
    shortest_s = played_s(known, within.most)
    if not shortest_s > 0:
        return None

    def lost(bound: int) -> float:
        return played_s(known, bound) / shortest_s - 1

    good, least = within.most, within.least
    while least < good:  # the time falls with the bound
        middle = (least + good) // 2
        least, good = (least, middle) if lost(middle) <= GOOD else (middle + 1, good)
    chosen = good if good < bound or lost(bound) > TOO_SLOW else bound
    first, *others = dict.fromkeys(each for each in (chosen, bound, chosen - 1) if within.least <= each < within.most)
    compared = "".join(f", bound {each} {lost(each):.1%}" for each in others)
    loss = f"bound {first} would be {lost(first):.1%} slower than bound {within.most}{compared}"
    return chosen, f"by the last {min(map(len, known))} steps of each worker {loss}"


def played_s(steps: Durations, bound: int) -> float:
    """Seconds in which all workers take STEPS steps under this bound; who has fewer repeats them."""
    ends, floor_at = [0.0] * len(steps), [0.0]  # of the steps so far; when the floor came to 0, 1, 2, ...
    for step in range(STEPS):
        opens_s = floor_at[max(0, step - bound)]
        ends = [max(end, opens_s) + each[step % len(each)] for end, each in zip(ends, steps, strict=True)]
        floor_at.append(max(ends))
    return floor_at[-1]
