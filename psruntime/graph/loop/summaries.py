"""Summaries: the chief writes what the model collects, so one curve is drawn, of one worker's batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.errors import first_line
from psruntime.graph.loop.worker_run import WorkerRun


class SummaryHook(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Adds the model's summaries to the events of the checkpoint folder, while this worker is the chief.

    It does so every `summary_steps` global steps.  global_step: gives it as this worker last saw it.
    Writes nothing without a folder, with `summary_steps` 0, or for a model without summaries.  A failure to write is
    reported once, and ends the writing.
    """

    def __init__(self, run: WorkerRun, global_step: Callable[[], int]) -> None:
        self._folder = run.job.checkpoint_dir
        self._every = run.job.summary_steps
        with run.graph.graph.as_default():
            self._merged = tf1.summary.merge_all() if self._folder and self._every else None
        self._is_chief = run.control_plane.is_chief
        self._is_step = run.graph.is_step
        self._log = run.log
        self._global_step = global_step
        self._next = 0  # the global step at which the next ones are due
        self._writer: Any = None

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
        """What a lost session interrupted is due again, and what was undone."""
        self._next = min(self._next, self._global_step())

    def before_run(self, run_context: Any) -> Any:
        if self._merged is None or self._global_step() + 1 < self._next:
            return None
        if not self._is_step(run_context) or not self._is_chief():
            return None
        self._next = self._global_step() + self._every  # so that a step that runs beside this one has none
        return tf1.train.SessionRunArgs(self._merged)

    def after_run(self, run_context: Any, run_values: Any) -> None:  # noqa: ARG002
        if run_values.results is None:
            return
        self._next = self._global_step() + self._every
        self._write(run_values.results, self._global_step())

    def end(self, session: Any) -> None:  # noqa: ARG002
        if self._writer is not None:
            self._writer.close()

    def _write(self, summary: bytes, global_step: int) -> None:
        try:
            if self._writer is None:
                self._writer = tf1.summary.FileWriter(self._folder)
            self._writer.add_summary(summary, global_step)
            self._writer.flush()
        except (tf1.errors.OpError, OSError) as error:
            self._merged = None
            self._log("summaries_failed", reason=first_line(error))
