"""The settings of an evaluator."""

from __future__ import annotations

from dataclasses import dataclass

from psruntime.config.settings import check_values, setting
from psruntime.config.values import Metric


@dataclass(frozen=True)
class EvaluatorConfig:
    """metric: empty, or as --keep-best.  patience: in checkpoints; None: the job is not ended.

    Raises:
        UsageError: a value is out of range.
    """

    metric: str = setting(
        "checkpoints", "", "held-out metric by which an evaluator keeps the best checkpoint, in best/, and has "
        "--patience; written as for --keep-best", metavar="METRIC", default_is="that of --keep-best, or loss",
    )  # fmt: skip
    patience: int | None = setting(
        "checkpoints", None, "let an evaluator end the job, as psruntime control drain does, when the metric got no "
        "better in so many checkpoints in a row", default_is="it is not ended", least=1,
    )  # fmt: skip

    def __post_init__(self) -> None:
        Metric.of("metric", self.metric)
        check_values(self)

    @property
    def compares(self) -> bool:
        """Whether it compares checkpoints by a metric."""
        return bool(self.metric) or self.patience is not None

    def metric_of(self, keep_best: str) -> Metric:
        """keep_best: the job's setting."""
        return Metric.of("metric", self.metric or keep_best or "loss")
