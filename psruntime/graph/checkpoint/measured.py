"""Measures each new checkpoint of a job, in an evaluator.  The values are also written beside the checkpoints, as
summaries of TensorBoard and as lines of JSON.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext

import tensorflow.compat.v1 as tf1

from psruntime.errors import CheckpointError
from psruntime.evaluation import history
from psruntime.graph.base.errors import first_line
from psruntime.graph.base.summary_writer import SummaryWriter
from psruntime.graph.checkpoint.best import BestCheckpoint, Evaluation
from psruntime.graph.checkpoint.folder import Unfinished
from psruntime.graph.checkpoint.listing import step_of
from psruntime.graph.checkpoint.new_checkpoints import NewCheckpoints

FOLDER = "eval"  # beside the checkpoints, as stock's estimators have it
HISTORY = "evaluations.jsonl"


class MeasuredCheckpoints:
    """Measures the checkpoints of `folder` one after the other, and writes the values to the folder `out`, if any.

    on_values: called with the path of each, its global step and its metrics by name.  best: keeps the best one.

    global_step: of the last one that has values; -1 before.  failure: why the newest has none; empty if it has.
    is_unreadable: whether the list of checkpoints could not be read last.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        folder: str,
        out: str,
        on_values: Callable[[str, int, dict[str, float]], None],
        log: Callable[..., None],
        best: BestCheckpoint | None = None,
    ) -> None:
        self.global_step = -1
        self.failure = ""
        self.is_unreadable = False
        self._evaluation, self._on_values, self._log, self._best = evaluation, on_values, log, best
        self._new = NewCheckpoints(folder)
        self._out = out
        self._writer = SummaryWriter(out, log)

    def measure_next(self) -> bool:
        """Measures the oldest that is new; returns False if there is none.

        One that is removed meanwhile, as more are written than are measured, is skipped.

        Raises:
            UsageError, UserCodeError: the model or its input fails, as it would with the next one.
        """
        path = self._next()
        if path is None:
            return False
        global_step = step_of(path) or 0
        with self._best.linked(path, global_step) if self._best else nullcontext() as linked:
            self._measure(path, global_step, linked)
        return True

    def close(self) -> None:
        """Closes the file of the summaries."""
        self._writer.close()

    def _measure(self, path: str, global_step: int, linked: Unfinished | None) -> None:
        try:
            values = self._evaluation.measure(linked.merged if linked else path)
        except (tf1.errors.OpError, ValueError) as error:
            if self._is_gone(path):
                self._log("passed_over", global_step=global_step, reason="it was removed before it was measured")
            else:
                self.failure = f"checkpoint {path}: {first_line(error)}"
                self._log("evaluation_failed", global_step=global_step, reason=self.failure)
            return
        self.global_step, self.failure = global_step, ""
        if self._out:
            self._write(global_step, values)
        self._on_values(path, global_step, values)
        if self._best and linked:
            self._best.keep_if_best(linked, values)

    def _next(self) -> str | None:
        """The next new checkpoint.  A list that cannot be read is logged once: the next look may find it whole."""
        try:
            path = self._new.next()
        except CheckpointError as error:
            if not self.is_unreadable:
                self._log("checkpoints_unreadable", reason=error)
            self.is_unreadable = True
            return None
        self.is_unreadable = False
        return path

    def _is_gone(self, path: str) -> bool:
        try:
            return not self._new.is_listed(path)
        except CheckpointError:
            return False

    def _write(self, global_step: int, values: dict[str, float]) -> None:
        if not self._writer.write(global_step, values) or not os.path.isdir(self._out):
            return  # only TensorFlow reaches it, as gs://, or it cannot be written
        try:
            history.append(os.path.join(self._out, HISTORY), global_step, time.time(), values)
        except OSError as error:
            self._log("summaries_failed", reason=first_line(error))
