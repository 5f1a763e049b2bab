"""Steps of the async and the bounded mode: one `session.run` pulls, computes and pushes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from psruntime.core.ledger import APPLIED
from psruntime.errors import JobFailedError
from psruntime.graph.inputs import InputStream
from psruntime.graph.place import Place
from psruntime.graph.training import TrainGraph


@dataclass(frozen=True)
class StepResult:
    """What one step brought.

    staleness: the largest of the applied updates, in versions.  dropped: buckets that refused theirs.
    """

    loss: float
    global_step: int
    examples: int
    staleness: int
    dropped: int


class PushSteps:
    """on_step: called with the result of every step.  has_stopped: whether a hook of the model wants no further one."""

    def __init__(
        self,
        graph: TrainGraph,
        inputs: InputStream,
        place: Place,
        stop_on_nan: bool,
        on_step: Callable[[StepResult], None],
        has_stopped: Callable[[], bool],
    ) -> None:
        self._graph = graph
        self._inputs = inputs
        self._place = place
        self._stop_on_nan = stop_on_nan
        self._on_step = on_step
        self._has_stopped = has_stopped

    def run(self, session: Any) -> None:
        """Steps until training rests.

        Raises:
            JobFailedError: the loss is not finite, and that ends the job.
        """
        while not self._has_stopped() and self._place.may_step():
            batch = self._inputs.draw_endlessly()
            feed = dict(zip(self._graph.model.batch, batch, strict=True))
            result = _read(session.run(self._graph.step, feed_dict=feed), self._inputs.examples(batch))
            self._place.stepped(result.global_step)
            self._on_step(result)
            if self._stop_on_nan:
                require_finite(result.loss, result.global_step)


def require_finite(loss: float, global_step: int) -> None:
    """Raises JobFailedError unless the loss is a finite number."""
    if not math.isfinite(loss):
        raise JobFailedError(
            f"the loss is {loss} at global step {global_step}; its gradient was not applied "
            "(--on-nan continue passes over such batches)"
        )


def _read(fetched: dict[str, Any], examples: int) -> StepResult:
    outcomes = np.concatenate(fetched["outcomes"])
    applied = outcomes[outcomes[:, 0] == APPLIED]
    return StepResult(
        loss=float(fetched["loss"]),
        global_step=int(fetched["global_step"]),
        examples=examples,
        staleness=int(applied[:, 1].max(initial=0)),
        dropped=len(outcomes) - len(applied),
    )
