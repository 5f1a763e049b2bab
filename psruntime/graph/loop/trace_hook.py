"""Traces the steps of --trace-steps: their phases, and what TensorFlow ran for them on this worker and on every ps."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.graph.base.background import Background, await_end
from psruntime.graph.base.devices import ps_device
from psruntime.graph.base.errors import LOST_SESSION, first_line
from psruntime.graph.loop.run_spans import run_spans
from psruntime.graph.loop.worker_run import WorkerRun
from psruntime.observe.step_times import StepTimes
from psruntime.step_range import StepRange
from psruntime.tracing.chrome import write_trace
from psruntime.tracing.parts import Part, parts_in, read_part, write_part
from psruntime.tracing.spans import PHASE, STEP, Span

if TYPE_CHECKING:
    from psruntime.graph.loop.push_steps import StepResult

FOLDER = "trace"  # beside the checkpoints
CLOCK_READS = 8  # of each ps; the fastest one counts
JOIN_EVERY_S = 2.0
JOIN_FOR_S = 60.0
WRITE_S = 30.0  # that the end of the training waits for


class TraceHook(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Traces this worker's steps while the global step is within `trace_steps`, and writes them once it is past them.

    Each worker writes a part.  The chief joins those that come within a minute, and at the end of its training those
    that came later.  The first step of a session runs as traced ones do, since TensorFlow makes the graph ready anew
    for that.  A failure is told once, and the training goes on.

    `step` is to be called with the result of every step, after its run.  global_step: gives it as this worker last saw
    it.  run: which run of the job it is.
    """

    def __init__(self, worker_run: WorkerRun, global_step: Callable[[], int], run: Callable[[], int]) -> None:
        self._run, self._global_step, self._which = worker_run, global_step, run
        self._first, self._last = StepRange.of("trace_steps", worker_run.job.trace_steps)
        self._is_ready = False
        self._is_over = self._last == 0
        self._options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        self._ran: Any = None
        self._steps: list[tuple[StepResult, Any]] = []
        self._task: Background[None] | None = None
        self._ends = threading.Event()
        self._joined: dict[str, int] = {}
        if not self._is_over:
            with worker_run.graph.graph.as_default():
                self._clocks = [self._clock(ps) for ps in range(worker_run.job.ps)]

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
        self._is_ready = False
        self._ran = None

    def before_run(self, run_context: Any) -> Any:
        if self._is_over or not self._run.graph.is_step(run_context):
            return None
        if not self._is_ready:
            self._is_ready = True
            return tf1.train.SessionRunArgs(None)
        is_traced = self._first <= self._global_step() + 1 < self._last
        return tf1.train.SessionRunArgs(None, options=self._options) if is_traced else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self._is_over:
            return
        if run_values.options.trace_level == tf1.RunOptions.FULL_TRACE:
            self._ran = run_values.run_metadata
        elif self._steps and self._global_step() + 1 >= self._last:
            self._finish(run_context.session)

    def step(self, result: StepResult) -> None:
        """The step that ran last has this result."""
        if self._ran is not None:
            self._steps.append((result, self._ran))
            self._ran = None

    def end(self, session: Any) -> None:
        """The training is over: what was traced up to now is written, and joined with the rest."""
        was_cut = bool(self._steps)
        if was_cut:
            self._finish(session)
        if self._task:
            self._ends.set()
            await_end(self._task, "the trace to be written", self._run.log, WRITE_S)
        if self._first < self._last and self._run.control_plane.is_chief():
            if was_cut:
                time.sleep(JOIN_EVERY_S)  # the others end with the chief, and write then
            self._safely(self._join)

    def _finish(self, session: Any) -> None:
        self._is_over = True
        try:
            offsets = self._offsets(session)
        except LOST_SESSION as error:
            self._run.log("trace_failed", reason=first_line(error))
            return
        steps, self._steps = self._steps, []
        self._task = Background("trace", lambda: self._safely(lambda: self._write(steps, offsets)))

    def _offsets(self, session: Any) -> list[tuple[float, float]]:
        """Of each ps (its clock less that of this worker, in s; how far off that may be).

        After D. L. Mills, RFC 5905: of several readings the one that came back soonest, taken for its middle.
        """
        offsets = []
        for clock in self._clocks:
            readings = []
            for _ in range(CLOCK_READS):
                sent_s = time.time()
                read_s = float(session.run(clock))
                back_s = time.time()
                readings.append((back_s - sent_s, read_s - (sent_s + back_s) / 2))
            took_s, offset_s = min(readings)
            offsets.append((offset_s, took_s / 2))
        return offsets

    def _write(self, steps: list[tuple[StepResult, Any]], offsets: list[tuple[float, float]]) -> None:
        """The clock of ps 0 is that of the trace."""
        worker = self._run.index
        to_ps_0 = offsets[0][0]
        shifts = {f"ps {ps}": to_ps_0 - offset for ps, (offset, _) in enumerate(offsets)}
        spans, left_out = [], 0
        for result, metadata in steps:
            assert result.times
            spans += _step_spans(worker, result, result.times, to_ps_0)
            found, short = run_spans(metadata.step_stats, worker, self._run.graph.graph, to_ps_0, shifts)
            spans += found
            left_out += short
        write_part(Part(self._which(), worker, max(off for _, off in offsets), left_out, spans), self._parts_folder)
        self._run.log("trace", steps=len(steps), path=self._parts_folder)
        until_s = time.monotonic() + JOIN_FOR_S
        while self._run.control_plane.is_chief() and time.monotonic() < until_s:
            self._join()
            if self._ends.wait(JOIN_EVERY_S):
                return

    def _join(self) -> None:
        """Writes the trace anew if there are parts that it has not."""
        found = parts_in(self._parts_folder)
        if found == self._joined:
            return
        parts = [part for part in map(read_part, found) if part.run == self._which()]
        job = self._run.job
        facts = {"steps": job.trace_steps, "mode": self._run.control_plane.mode}
        path = f"{self._parts_folder}.json.gz"
        write_trace(parts, facts, path)
        self._joined = found
        self._run.log("trace_joined", workers=len(parts), path=path)

    @property
    def _parts_folder(self) -> str:
        job = self._run.job
        return os.path.join(job.checkpoint_dir, FOLDER, f"steps-{job.trace_steps.replace(':', '-')}")

    def _safely(self, work: Callable[[], None]) -> None:
        try:
            work()
        except OSError as error:
            self._run.log("trace_failed", reason=str(error))

    def _clock(self, ps: int) -> Any:
        with tf1.device(ps_device(ps)):
            return tf1.timestamp()


def _step_spans(worker: int, result: StepResult, times: StepTimes, shift_s: float) -> list[Span]:
    task = f"worker {worker}"
    facts: dict[str, Any] = {
        "global_step": result.global_step,
        "examples": result.examples,
        "staleness": result.staleness,
    }
    if np.isfinite(result.loss):
        facts["loss"] = round(result.loss, 6)
    whole = Span(task, worker, STEP, f"step {result.global_step}", times.waits + shift_s, times.done + shift_s, facts)
    phases = [
        Span(task, worker, PHASE, name, begin_s + shift_s, end_s + shift_s) for name, begin_s, end_s in times.phases
    ]
    return [whole, *phases]
