"""What comes of a training step, in every mode."""

from __future__ import annotations

import math
from dataclasses import dataclass

from psruntime.errors import JobFailedError
from psruntime.observe.meter import StepTimes


@dataclass(frozen=True)
class StepResult:
    """The result of one step.

    finite: whether loss and gradient are.  staleness: the largest of the applied updates, in versions; None if there
    are none.  dropped: buckets that refused theirs.  counted: whether none did because it was stale or its sender not
    admitted.  times: when it did what.  weight: of the batch, where a step returns it.
    """

    loss: float
    finite: bool
    global_step: int
    examples: int
    staleness: int | None
    dropped: int
    counted: bool = True
    times: StepTimes | None = None
    weight: float = 0.0


def require_finite(result: StepResult) -> None:
    """Raises JobFailedError unless loss and gradient of a step are finite numbers."""
    if not result.finite:
        at = f"at global step {result.global_step}"
        if math.isfinite(result.loss):
            what = f"the gradient is not finite {at}, though the loss is {result.loss:g}; it was not applied"
        else:
            what = f"the loss is {result.loss} {at}; its gradient was not applied"
        raise JobFailedError(f"{what} (--on-nan continue passes over such batches)")
