"""The settings in force: what an operator may change of a running job.  How it was started stays in JobConfig."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

from psruntime.errors import UsageError

LARGEST_BOUND = 2**53 - 1  # steps, as of --bound
SMALLEST_SCALE, LARGEST_SCALE = 1e-30, 1e30  # a ps multiplies in float32, which has to tell it from 0 and infinity


def check_bound(name: str, bound: int) -> int:
    """Raises UsageError unless it can be one."""
    if not 0 <= bound <= LARGEST_BOUND:
        raise UsageError(f"{name} must be from 0 to {LARGEST_BOUND}, got {bound}")
    return bound


def check_scale(name: str, scale: float) -> float:
    """Raises UsageError unless it can be one."""
    if not (math.isfinite(scale) and SMALLEST_SCALE <= scale <= LARGEST_SCALE):
        raise UsageError(f"{name} must be a number from {SMALLEST_SCALE:g} to {LARGEST_SCALE:g}, got {scale:g}")
    return scale


@dataclass(frozen=True)
class Overrides:
    """revision: counts the changes since the job was started, over the lives of all its coordinators.

    from_global_step: the change before which no worker took a step under these settings, and after which none did under
    those before.  bound: in mode bounded, else None.  learning_rate_scale: by which every learning rate is multiplied.
    paused: no step begins.  mode: by which steps are taken; empty where that is not known.  automatic: mode and bound
    are what the job makes them itself, by its schedule, or the bound that it chooses; else an operator's.
    """

    revision: int = 0
    from_global_step: int = 0
    bound: int | None = None
    learning_rate_scale: Annotated[float, check_scale] = 1.0
    paused: bool = False
    mode: str = ""
    automatic: bool = False

    def same_steps(self, other: Overrides) -> bool:
        """Whether steps are taken alike under both."""
        return replace(self, automatic=other.automatic) == other

    def same_graph(self, other: Overrides) -> bool:
        """Whether the steps under both are of one graph, as those of modes async and bounded are."""
        return (self.mode == "sync") == (other.mode == "sync")

    def newer(self, other: Overrides) -> Overrides:
        """The ones of both with the higher revision; of the same, those that were in force, not only sent to the ps."""
        ours, theirs = ((each.revision, each.from_global_step) for each in (self, other))
        return other if theirs > ours else self


UNCHANGED = Overrides()  # of a process that has got no change
