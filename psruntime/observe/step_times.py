"""When a step of a worker did what: the marks that a step leaves, and the phases between them."""

from __future__ import annotations

from dataclasses import dataclass

GATE = "gate"  # modes async and bounded: until the step may begin
ROUND = "round"  # mode sync: until the worker's turn comes
INPUT = "input"  # until there is a batch
PULL = "pull"  # until the variables that the model reads whole, and the rows of its table groups, are on the worker
COMPUTE = "compute"  # until loss and gradients are there
PUSH = "push"  # until every ps has answered
PHASES = (GATE, ROUND, INPUT, PULL, COMPUTE, PUSH)


@dataclass(frozen=True)
class StepTimes:
    """The marks of one step, in seconds since 1970 by the clock of its worker; none is before the one above it.

    wait: what the step waited for, GATE or ROUND.  waits: for that.  draws: a batch.  runs: the graph.
    pulled, computed: within that run.  done: it has run.
    """

    wait: str
    waits: float
    draws: float
    runs: float
    pulled: float
    computed: float
    done: float

    @property
    def phases(self) -> list[tuple[str, float, float]]:
        """(phase, its begin, its end), in their order."""
        marks = (self.waits, self.draws, self.runs, self.pulled, self.computed, self.done)
        return list(zip((self.wait, INPUT, PULL, COMPUTE, PUSH), marks, marks[1:], strict=False))


def in_order(wait: str, *marks: float) -> StepTimes:
    """Of marks that two clocks made, or one that was set: none before the one above it, none after the last."""
    last, least, ordered = marks[-1], marks[0], []
    for mark in marks:
        least = max(least, min(mark, last))
        ordered.append(least)
    return StepTimes(wait, *ordered)
