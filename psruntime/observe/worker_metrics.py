"""The metrics of a worker's steps and GPUs, and of an evaluator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric

from psruntime.core.members.messages import STALENESS_LIMITS, WorkerStats
from psruntime.observe.meter import PHASES, StepTimes
from psruntime.observe.metrics import Endpoint, Families, counter, gauge, moved

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
CHECKPOINT_SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)


class WorkerMetrics:
    """Collects the steps of worker `index`, and serves them at the endpoint.

    stats: returns the worker's current measurements.
    """

    def __init__(self, endpoint: Endpoint, index: int, stats: Callable[[], WorkerStats]) -> None:
        self._index = index
        self._stats = stats
        self._endpoint = endpoint
        self._steps = self._made(Counter, "steps", "Steps that ended.")
        self._examples = self._made(Counter, "examples", "Training examples in these steps.")
        self._dropped = self._made(Counter, "updates_dropped", "Updates of buckets that a ps refused.")
        self._loss: Any = None  # until there is one
        self._seconds = self._made(
            Histogram, "step_seconds", "Time from when a step might begin to its end.", buckets=SECONDS
        )
        phases = self._kind(
            Histogram, "step_phase_seconds", "Time that each phase of a step took.", ("phase",), buckets=SECONDS
        )
        self._phases = {phase: phases.labels(index, phase) for phase in PHASES}
        self._staleness = self._made(
            Histogram, "update_staleness_versions", "Largest staleness of the buckets of an update.",
            buckets=STALENESS_LIMITS,
        )  # fmt: skip
        self._checkpoint = self._made(
            Histogram,
            "checkpoint_seconds",
            "Time to copy and write a checkpoint, as the chief.",
            buckets=CHECKPOINT_SECONDS,
        )
        endpoint.add(Families(self._read))

    def step(self, loss: float, examples: int, staleness: int | None, dropped: int, times: StepTimes | None) -> None:
        """Adds a step.  staleness: in versions; None if its update was applied nowhere.  dropped: in buckets."""
        self._steps.inc()
        self._examples.inc(examples)
        self._dropped.inc(dropped)
        if self._loss is None:
            self._loss = self._made(Gauge, "loss", "Loss of the last step.")
        self._loss.set(loss)
        if staleness is not None:
            self._staleness.observe(staleness)
        if times:
            self._seconds.observe(times.done - times.waits)
            for phase, begin, end in times.phases:
                self._phases[phase].observe(end - begin)

    def checkpoint(self, seconds: float) -> None:
        """Adds a checkpoint that was written in that time."""
        self._checkpoint.observe(seconds)

    def _made(self, kind: Any, name: str, text: str, **more: Any) -> Any:
        return self._kind(kind, name, text, **more).labels(self._index)

    def _kind(self, kind: Any, name: str, text: str, labels: tuple[str, ...] = (), **more: Any) -> Any:
        return kind(f"psruntime_worker_{name}", text, ("worker", *labels), registry=self._endpoint.registry, **more)

    def _read(self) -> Iterable[Metric]:
        stats, worker = self._stats(), {"worker": self._index}
        yield counter("worker_updates_sent", "Updates sent, each to every bucket.", (worker, stats.pushes))
        yield counter("worker_batches_skipped", "Batches passed over by --on-data-error skip.", (worker, stats.skipped))
        gpus = [({**worker, "gpu": gpu.index}, gpu.held_bytes) for gpu in stats.gpus]
        yield gauge(
            "worker_gpu_memory_bytes",
            "Memory of each GPU that the process uses, by the index of the GPU on its machine.",
            *gpus,
        )
        yield from moved("worker", self._index, stats.moved)


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
