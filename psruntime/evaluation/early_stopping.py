"""Early stopping of a job whose held-out metric gets no better: --patience."""

from __future__ import annotations

from psruntime.config.values import Metric
from psruntime.evaluation.history import History


class EarlyStopping:
    """Decides from the metrics of one checkpoint after the other.

    patience: how many in a row may be no better than the best before them; None: any number.
    history: of an earlier process.  A job that continues after an early stop has all of its patience again.
    """

    def __init__(self, metric: Metric, patience: int | None, history: History | None = None) -> None:
        self._metric, self._patience = metric, patience
        self._history = history or History()

    def add(self, global_step: int, metrics: dict[str, float]) -> None:
        """Adds the metrics of a checkpoint."""
        self._history.add(global_step, metrics)

    @property
    def reason(self) -> str:
        """Why the job is to end; empty while it is not."""
        step, value = self._best
        since = max(step, self._history.stopped_at)
        later = sum(each > since and self._metric.name in seen for each, seen in self._history.evaluations.items())
        if self._patience is None or later < self._patience:
            return ""
        best = f"best was {value:.4f} at global step {step}" if value is not None else "no value was finite"
        return f"{self._metric.name} got no better in {later} checkpoints: {best}"

    @property
    def _best(self) -> tuple[int, float | None]:
        """(its global step, its value); before any finite one, (-1, None)."""
        best: tuple[int, float | None] = (-1, None)
        for step, metrics in self._history.evaluations.items():
            value = metrics.get(self._metric.name)
            if value is not None and self._metric.is_better(value, best[1]):
                best = step, value
        return best
