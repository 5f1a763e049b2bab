"""When a job is ended because its held-out metric gets no better: --patience."""

from __future__ import annotations

from collections.abc import Sequence

from psruntime.evaluation.history import Evaluation, followed_by
from psruntime.metric import Metric


class EarlyStopping:
    """Looks at one checkpoint after the other.

    patience: how many in a row may be no better than the best before them; None: any number.
    before: what was measured by an earlier process.
    """

    def __init__(self, metric: Metric, patience: int | None, before: Sequence[Evaluation] = ()) -> None:
        self._metric, self._patience = metric, patience
        self._seen = [each for each in before if metric.name in each[1]]

    def saw(self, global_step: int, metrics: dict[str, float]) -> bool:
        """Whether this is the best one so far."""
        self._seen = followed_by(self._seen, (global_step, metrics))
        return self._best[0] == global_step

    @property
    def reason(self) -> str:
        """Why the job is to end; empty while it is not."""
        if self._patience is None or not self._seen:
            return ""
        step, value = self._best
        later = sum(each > step for each, _ in self._seen)
        if later < self._patience:
            return ""
        best = f"best was {value:.4f} at global step {step}" if value is not None else "no value was finite"
        return f"{self._metric.name} got no better in {later} checkpoints: {best}"

    @property
    def _best(self) -> tuple[int, float | None]:
        """(its global step, its value); before any finite one, (-1, None)."""
        best: tuple[int, float | None] = (-1, None)
        for step, metrics in self._seen:
            value = metrics[self._metric.name]
            if self._metric.is_better(value, best[1]):
                best = step, value
        return best
