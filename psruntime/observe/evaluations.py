"""The metrics of each checkpoint, as a file beside the checkpoints, and the end of a job whose metric gets no better.

    {"global_step": 200, "time": 1764064000.1, "metrics": {"loss": 0.31, "accuracy": null}}
    {"global_step": 200, "time": 1764064000.2, "stopped_early": "loss got no better in 5 checkpoints: ..."}

time: in seconds since 1970.  A value that is not finite is null.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from psruntime.config.values import Metric
from psruntime.errors import some
from psruntime.observe.outputs import LineFile

MOST_TOLD = 20  # values in a line for people; a metric may have several


@dataclass
class History:
    """Metrics by global step, without those of steps that a job repeated after a rollback.

    evaluations: global step -> metrics by name, in order.  stopped_at: the last step of an early stop; -1 without one.
    """

    evaluations: dict[int, dict[str, float]] = field(default_factory=dict)
    stopped_at: int = -1

    def add(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Adds metrics, and drops those of this step or later ones, which the job has undone."""
        while self.evaluations and next(reversed(self.evaluations)) >= global_step:
            self.evaluations.popitem()
        self.stopped_at = min(self.stopped_at, global_step)
        self.evaluations[global_step] = dict(metrics)


def append(path: str, global_step: int, time_s: float, metrics: Mapping[str, float]) -> None:
    """Appends the metrics of a checkpoint.

    Raises:
        OSError: the file cannot be written.
    """
    _append(path, as_line({"global_step": global_step, "time": time_s}, metrics))


def append_stop(path: str, global_step: int, time_s: float, reason: str) -> None:
    """Appends an early stop; as `append`."""
    _append(path, json.dumps({"global_step": global_step, "time": time_s, "stopped_early": reason}))


def as_line(facts: Mapping[str, Any], metrics: Mapping[str, float]) -> str:
    """Facts and metrics as JSON, which has no NaN."""
    finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    return json.dumps({**facts, "metrics": finite})


def text_of(global_step: int, values: Mapping[str, float]) -> str:
    """The values at a global step, in a line for people."""
    texts = [f"{name} {value:.4f}" for name, value in values.items()]
    return f"held out, at global step {global_step}: {some(texts, MOST_TOLD)}"


def best_text_of(global_step: int, name: str, value: float) -> str:
    """The best value of a metric, in a line for people."""
    return f"held out, best at global step {global_step}: {name} {value:.4f}"


def read(path: str) -> History:
    """The history in a file; empty without one.  A line that is malformed, as after a crash, is skipped."""
    history = History()
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.readlines()
    except OSError:
        return history
    for line in lines:
        try:
            entry = json.loads(line)
            step = int(entry["global_step"])
            if "stopped_early" in entry:
                history.stopped_at = step
            else:
                history.add(step, {str(name): _value(value) for name, value in entry["metrics"].items()})
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return history


def _value(value: Any) -> float:
    return math.nan if value is None else float(value)


def _append(path: str, line: str) -> None:
    with closing(LineFile(path)) as file:
        file.add(line + "\n")


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


class StoredStopping:
    """As EarlyStopping, with the values of the metric in a file, so that another process continues.

    A file that cannot be written keeps the count as it was.
    """

    def __init__(self, path: str, metric: Metric, patience: int) -> None:
        self._path, self._metric, self._patience = path, metric, patience

    def add(self, global_step: int, metrics: Mapping[str, float]) -> str:
        """Adds the metrics of a checkpoint; returns why the job is to end, empty if it is not."""
        own = {name: value for name, value in metrics.items() if name == self._metric.name}
        stopping = self._read()
        stopping.add(global_step, own)
        with suppress(OSError):
            append(self._path, global_step, time.time(), own)
        return stopping.reason

    def ended(self, global_step: int) -> None:
        """The job has ended at this global step, for its metric or otherwise."""
        if reason := self._read().reason:
            with suppress(OSError):
                append_stop(self._path, global_step, time.time(), reason)

    def _read(self) -> EarlyStopping:
        return EarlyStopping(self._metric, self._patience, read(self._path))
