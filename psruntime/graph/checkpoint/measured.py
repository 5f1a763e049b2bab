"""The checkpoints of a job as an evaluator measures them, and the best of them by a held-out metric.

Each checkpoint that the chief has written is measured from its files, in a thread of its own: the value belongs to
exactly these parameters, and the training continues.  The values are also written beside the checkpoints, as summaries
of TensorBoard and as lines of JSON.  The best one is kept in `best/`, and `best.json` has its name and its value.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from glob import escape, glob
from typing import Any, Protocol

import tensorflow.compat.v1 as tf1

from psruntime.config.values import Metric
from psruntime.errors import CheckpointError, UsageError
from psruntime.faults import first_line
from psruntime.graph.base.errors import await_end
from psruntime.graph.base.summary_writer import SummaryWriter
from psruntime.graph.checkpoint.folder import CheckpointFolder, Unfinished, names_of
from psruntime.graph.checkpoint.listing import DELTA, NewCheckpoints, step_of
from psruntime.observe import evaluations
from psruntime.observe.evaluations import MOST_TOLD


class Evaluation(Protocol):
    """Measures a checkpoint; graph/model/evaluate.py has the real one."""

    def measure(self, path: str) -> dict[str, float]:
        """Metrics by name, of the variables in the checkpoint `path`."""


OnMeasured = Callable[[int, dict[str, float], tuple[int, float] | None], None]


class BestCheckpoint:
    """Keeps the best checkpoint of `folder` by a metric in `folder`/best.

    on_measured: called with the global step and the metrics by name of each that was offered and measured, and with the
    global step and the metric of the best so far, None before the first.
    every: global steps between two that are measured; 0: each.  One that is due while another is measured waits, until
    a newer one takes its place: no step waits for a measurement.  is_measuring: whether one is under way.
    An evaluation that fails is logged, and its checkpoint skipped.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        folder: str,
        metric: Metric,
        log: Callable[..., None],
        on_measured: OnMeasured = lambda *_: None,
        every: int = 0,
    ) -> None:
        self._evaluation = evaluation
        self._on_measured, self._every = on_measured, every
        self._folder = CheckpointFolder(os.path.join(folder, "best"), keep=1)
        self._path = os.path.join(self._folder.path, "best.json")
        self._metric = metric
        self._log = log
        self._thread: threading.Thread | None = None
        self._newest: tuple[str, int] | None = None  # path and global step, not measured yet
        self._due_at = 0  # global step of the last that was due
        self._lock = threading.Lock()  # guards what follows
        self._due: tuple[str, int] | None = None  # is measured next
        self.is_measuring = False

    def offer(self, path: str, global_step: int) -> None:
        """Starts to measure the checkpoint `path`, if that is due, to keep it if it is the best."""
        self._newest = path, global_step
        if not 0 <= global_step - self._due_at < self._every:
            self._measure_newest()

    def close(self) -> None:
        """Measures the last checkpoint that was offered, and waits until it is compared."""
        self._measure_newest()
        self.wait()

    @contextmanager
    def linked(self, path: str, global_step: int) -> Iterator[Unfinished | None]:
        """Links to the files of the checkpoint `path`, which stay while open, though it is removed meanwhile; None if
        it is removed already, or the folder cannot be written.
        """
        with ExitStack() as stack:
            linked = None
            with self._failing(global_step), suppress(FileNotFoundError):
                self._folder.require_writable()
                new = stack.enter_context(self._folder.unfinished(global_step))
                _link(path, new.merged)
                linked = new
            yield linked

    def keep_if_best(self, linked: Unfinished, values: dict[str, float]) -> None:
        """Keeps a linked checkpoint, which has these values, if it is the best."""
        with self._failing(linked.global_step):
            self._compare(linked, values)

    def wait(self) -> None:
        """Waits until all checkpoints that were due are measured and compared."""
        if self._thread:
            await_end(self._thread, "the checkpoint before to be measured", self._log)

    @contextmanager
    def _failing(self, global_step: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - no error of an evaluation may end the training
            self._log("best_failed", global_step=global_step, reason=first_line(error))

    def _measure_newest(self) -> None:
        newest, self._newest = self._newest, None
        if newest is None:
            return
        self._due_at = newest[1]
        with self._lock:
            passed_over, self._due = self._due, newest
            starts, self.is_measuring = not self.is_measuring, True
        if passed_over:
            self._log("passed_over", global_step=passed_over[1], reason="a newer one came while another was measured")
        if starts:
            self._thread = threading.Thread(target=self._measure_due, name="best", daemon=True)
            self._thread.start()

    def _measure_due(self) -> None:
        while True:
            with self._lock:
                due, self._due = self._due, None
                self.is_measuring = due is not None
            if due is None:
                return
            path, global_step = due
            with self.linked(path, global_step) as linked:
                if linked:
                    self._measure(linked)

    def _measure(self, linked: Unfinished) -> None:
        with self._failing(linked.global_step):
            values = self._evaluation.measure(linked.merged)
            try:
                self._compare(linked, values)
            finally:
                self._on_measured(linked.global_step, values, self.best)

    def _compare(self, new: Unfinished, values: dict[str, float]) -> None:
        require_metric("keep_best", self._metric.name, values)
        value = values[self._metric.name]
        best = self.best
        kept = self._metric.is_better(value, best and best[1])
        if kept:
            self._keep(new, value)
        self._log("measured", global_step=new.global_step, kept=kept, **values)

    @property
    def best(self) -> tuple[int, float] | None:
        """Global step and value of the best so far; None if there is none, or it was kept for another metric."""
        listed = {os.path.basename(path) for path in self._folder.listed()}
        noted = self._noted()
        while isinstance(noted, dict):
            try:
                of_this = (noted["metric"], noted["greatest_is_best"]) == self._metric
                if of_this and listed.intersection(names_of(noted["global_step"])):
                    return int(noted["global_step"]), float(noted["value"])
            except (ValueError, KeyError, TypeError):
                return None
            noted = noted.get("before")
        return None

    def _keep(self, new: Unfinished, value: float) -> None:
        """Keeps the new one.  Until it is listed, the note names the one before too, in case this process is killed."""
        facts = {
            "metric": self._metric.name,
            "greatest_is_best": self._metric.greatest,
            "value": value,
            "global_step": new.global_step,
        }
        self._note({**facts, "before": self._noted()}, new.folder)
        path = self._folder.publish(new)
        self._note({**facts, "checkpoint": os.path.basename(path)}, new.folder)

    def _noted(self) -> Any:
        try:
            with open(self._path, encoding="utf-8") as file:
                return json.load(file)
        except (FileNotFoundError, ValueError):
            return None

    def _note(self, facts: dict[str, Any], folder: str) -> None:
        unfinished = os.path.join(folder, "best.json")
        with open(unfinished, "w", encoding="utf-8") as file:
            json.dump(facts, file, indent=1)
        os.replace(unfinished, self._path)


def require_metric(setting: str, name: str, measured: Iterable[str]) -> None:
    """Checks that the metric `name`, which a setting names, is among those that the evaluation measures.

    Raises:
        UsageError: it is not.
    """
    names = list(measured)
    if name in names:
        return
    if several := [each for each in names if each.startswith(f"{name}/")]:
        raise UsageError(
            f"{setting} names {name}, a metric of {len(several)} values, and one is compared; name that one, for "
            f"example {several[0]}"
        )
    shown = ", ".join([*names[:MOST_TOLD], *(["..."] if len(names) > MOST_TOLD else [])])
    raise UsageError(f"{setting} names {name}, which the model does not measure; it has {shown}")


def _link(path: str, to: str) -> None:
    """The files of the checkpoint `path` under another prefix: hard links, copies where there are none.

    Raises:
        FileNotFoundError: it is removed, or was meanwhile.
    """
    index = f"{path}.index"  # it is removed first, so while it is there all others are
    for file in [*(file for file in glob(escape(path) + ".*") if file != index), index]:
        if file.startswith(path + DELTA):
            continue
        name = to + file.removeprefix(path)
        try:
            os.link(file, name)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copyfile(file, name)


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
            evaluations.append(os.path.join(self._out, HISTORY), global_step, time.time(), values)
        except OSError as error:
            self._log("summaries_failed", reason=first_line(error))
