"""The figures of a worker's steps: for the status, the log, the metrics and TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf1

from psruntime.core.members.messages import WorkerStats
from psruntime.graph.base import environment
from psruntime.graph.base.types import Array, Session, Tensor
from psruntime.graph.session.session import ViewHook
from psruntime.graph.session.worker_run import WorkerRun
from psruntime.observe.meter import StepMeter

if TYPE_CHECKING:
    from psruntime.graph.session.worker_run import StepResult

PROGRESS_S = 10.0  # between two progress lines in the log
STARTED = 3  # steps, after which nothing is built any more


class Progress:
    """The progress of this worker.  log: writes an event with its facts."""

    def __init__(self, log: Callable[..., None]) -> None:
        self._log = log
        self._meter = StepMeter()
        self._to_start = STARTED
        self._logged_at_s = time.monotonic()

    def step(self, result: StepResult) -> None:
        """Counts a step that ended."""
        self._to_start -= 1
        if self._to_start == 0:
            environment.give_back()
        now_s = time.monotonic()
        self._meter.step(result.loss, result.examples, result.staleness, result.dropped, now_s)
        if now_s - self._logged_at_s >= PROGRESS_S:
            self._logged_at_s = now_s
            stats = self._meter.stats(now_s)
            self._log(
                "progress", global_step=result.global_step, loss=result.loss, examples_per_s=stats.examples_per_s,
                staleness_p99=stats.staleness_p99, dropped=self._meter.dropped,
            )  # fmt: skip

    def skip(self) -> None:
        """Counts a batch that was skipped."""
        self._meter.skip()

    def stats(self, waiting: str) -> WorkerStats:
        """The measurements up to now.  waiting: for what this worker waits."""
        return self._meter.stats(time.monotonic(), waiting)


ALL = "all"  # of --summary-workers
PREFIX = "psruntime/"  # of the tags, so that none is one of the model


class SummaryHook(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Writes the summaries of a step every `summary_steps` global steps, while this worker is the chief, or always if
    every worker writes.

    `step` is to be called with the result of every step, after its run.  Writes nothing without a writer, or with
    `summary_steps` 0.

    The tags, each with the prefix psruntime/, of this worker unless noted otherwise:
        loss, gradient_norm: of the step; the norm over all gradients, before they are limited.
        staleness_mean, staleness_max, in versions, and examples_per_second: of the steps since the last ones.
        global_steps_per_second: of the job, since then.
        learning_rate: of the newest update, before a rate by staleness; several have the pattern of their variables
        as a suffix.
    """

    def __init__(self, run: WorkerRun, view_hook: ViewHook) -> None:
        self._graph = run.graph
        self._control_plane = run.control_plane
        self._every = run.job.summary_steps
        self._of_all = run.job.summary_workers == ALL
        self._writer = run.observers.summaries
        self._fetches = self._build() if self._writer and self._every else None
        self._view_hook = view_hook
        self._window = _Window()
        self._starts = True  # whether the next ones start a run, or restart it from an earlier global step
        self._next = 0  # the global step at which the next ones are due
        self._fetched: dict[str, Array] | None = None

    def after_create_session(self, session: Session, coord: tf1.train.Coordinator) -> None:  # noqa: ARG002
        """Makes summaries due again that the lost session interrupted, or whose steps were undone."""
        if self._view_hook.global_step < self._next - self._every:
            self._starts = True
        self._next = min(self._next, self._view_hook.global_step)
        self._window = _Window()

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs | None:
        if self._fetches is None or self._view_hook.global_step + 1 < self._next:
            return None
        if not self._graph.is_step(run_context) or not self._writes():
            return None
        self._next = self._view_hook.global_step + self._every  # so that a step that runs beside this one has none
        return tf1.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:  # noqa: ARG002
        self._fetched = run_values.results

    def step(self, result: StepResult) -> None:
        """Writes the summaries of the step that ran last, with this result, if they are due."""
        if self._fetches is None:
            return
        if self._fetched is None and not self._writes():
            self._reset()
            return
        self._window.add(result)
        if self._fetched is None:
            return
        fetched, self._fetched = self._fetched, None
        self._next = result.global_step + self._every
        window, self._window = self._window, _Window(result.global_step)
        values = {
            "loss": result.loss,
            "gradient_norm": float(fetched["gradient_norm"]),
            **window.figures,
            **self._learning_rates(),
        }
        assert self._writer
        tagged = {PREFIX + name: value for name, value in values.items()}
        written = self._writer.write(result.global_step, tagged, fetched.get("merged"), self._starts)
        self._starts = self._starts and not written

    def _writes(self) -> bool:
        return self._of_all or self._control_plane.is_chief()

    def _reset(self) -> None:
        """Closes the file while another worker is the chief and writes: later summaries are in a file of their own."""
        if not self._starts:
            assert self._writer
            self._writer.close()
        self._starts, self._window = True, _Window()

    def _build(self) -> dict[str, Tensor]:
        with self._graph.graph.as_default():
            merged = tf1.summary.merge_all()
        fetches = {"gradient_norm": self._graph.gradient_norm}
        return fetches if merged is None else {**fetches, "merged": merged}

    def _learning_rates(self) -> dict[str, float]:
        header = self._graph.rounds.request if self._graph.rounds else self._graph.request
        scale = self._control_plane.learning_rate_scale
        rates = {pattern: rate * scale for pattern, rate in header.rates.items()}
        if len(rates) == 1:
            return {"learning_rate": next(iter(rates.values()))}
        return {f"learning_rate/{pattern}": rate for pattern, rate in rates.items()}


class _Window:
    """The steps since summaries were written last, at the global step `begin`; None: in a new session."""

    def __init__(self, begin: int | None = None) -> None:
        self._since_s = time.monotonic()
        self._begin = begin
        self._end = 0
        self._applied = self._examples = self._staleness = self._stalest = 0

    def add(self, result: StepResult) -> None:
        """Counts a step that ended."""
        self._end = result.global_step
        self._examples += result.examples
        if result.staleness is not None:
            self._applied += 1
            self._staleness += result.staleness
            self._stalest = max(self._stalest, result.staleness)

    @property
    def figures(self) -> dict[str, float]:
        """Figures by name.  The steps of a new session give no speed: to build it took most of their time."""
        values = {}
        if self._applied:
            values = {"staleness_mean": self._staleness / self._applied, "staleness_max": float(self._stalest)}
        if self._begin is not None:
            passed_s = time.monotonic() - self._since_s
            values["examples_per_second"] = self._examples / passed_s
            values["global_steps_per_second"] = (self._end - self._begin) / passed_s
        return values
