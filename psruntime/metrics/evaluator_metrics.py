"""The metrics of an evaluator: those of the last checkpoint that it measured."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import Metric

from psruntime.metrics.endpoint import Endpoint
from psruntime.metrics.families import Families, counter, gauge


class EvaluatorMetrics:
    """Serves the metrics of the last checkpoint at the endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._last: tuple[int, Mapping[str, float], float] | None = None
        self._count = 0
        endpoint.add(Families(self._read))

    def measured(self, global_step: int, values: Mapping[str, float]) -> None:
        """Sets the metrics of a checkpoint, by name."""
        self._last = global_step, dict(values), time.time()
        self._count += 1

    def _read(self) -> Iterable[Metric]:
        yield counter("evaluator_checkpoints_measured", "Checkpoints measured.", ({}, self._count))
        if self._last:
            global_step, values, at_s = self._last
            yield gauge("evaluator_global_step", "Global step of the checkpoint measured last.", ({}, global_step))
            yield gauge(
                "evaluator_measured_timestamp_seconds", "When it was measured, in seconds since 1970.", ({}, at_s)
            )
            rows = (({"metric": name}, value) for name, value in values.items())
            yield gauge("evaluator_metric", "Its metrics on held-out data.", *rows)
