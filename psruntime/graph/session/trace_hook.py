"""Traces the steps of --trace-steps: their phases, and what TensorFlow ran for them on this worker and on every ps."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.faults import first_line
from psruntime.graph.base.errors import Background, await_end
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import Graph, Proto, Session, Tensor
from psruntime.graph.session.session import ViewHook
from psruntime.graph.session.worker_run import WorkerRun
from psruntime.observe.meter import StepTimes
from psruntime.observe.traces import APPLY, MUTEX, OP, PHASE, READ, STEP, TRANSFER, Head, Span, TraceFolder, write_part

if TYPE_CHECKING:
    from psruntime.graph.session.worker_run import StepResult

LEAST_S = 20e-6  # shorter operations are left out
ALL_KEPT = (APPLY, MUTEX)  # but for these
_DEVICE = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)/")
_LABEL = re.compile(r"= (\w+)\(")
_KINDS = (
    (MUTEX, re.compile(r"MutexLock")),
    (APPLY, re.compile(r"Apply|Scatter|Assign")),
    (READ, re.compile(r"ReadVariable|ResourceGather")),
    (TRANSFER, re.compile(r"_?(Host)?(Send|Recv)")),
)


def _run_spans(
    stats: Proto, worker: int, graph: Graph, shift_s: float, shifts: Mapping[str, float]
) -> tuple[list[Span], int]:
    """(spans, how many were too short to keep) of one run.

    stats: a StepStats, each device's by the clock of its machine.  shift_s: to be added to the times of this worker.
    shifts: task -> the same for a ps.
    """
    spans, left_out = [], 0
    for device in stats.dev_stats:
        named = _DEVICE.search(device.device)
        if not named:
            continue
        task = f"{named[1]} {named[2]}"
        to_clock_s = shifts.get(task, shift_s)
        for node in device.node_stats:
            type_ = _type_of(node, graph) or node.node_name  # as RecvTensor, which is none of a graph
            kind = next((kind for kind, pattern in _KINDS if pattern.search(type_)), OP)
            begin_s = node.all_start_micros / 1e6 + to_clock_s
            length_s = node.all_end_rel_micros / 1e6
            if length_s < LEAST_S and kind not in ALL_KEPT:
                left_out += 1
                continue
            spans.append(Span(task, worker, kind, node.node_name, begin_s, begin_s + length_s, {"type": type_}))
    return spans, left_out


def _type_of(node: Proto, graph: Graph) -> str:
    """The type of its operation.  TensorFlow adds some operations to the graph, and has their types in the label."""
    if found := _LABEL.search(node.timeline_label):
        return found[1]
    try:
        return str(graph.get_operation_by_name(node.node_name).type)
    except (KeyError, ValueError):
        return ""


CLOCK_READS = 8  # of all ps; the fastest one counts
JOIN_EVERY_S = 2.0
JOIN_FOR_S = 60.0
WRITE_S = 30.0  # that the end of the training waits for

Offsets = list[float]  # of each ps: its clock less that of this worker, in s


class TraceHook(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Traces this worker's steps while the global step is within `trace_steps`, and writes them once it is past them.

    Each worker writes a part.  The chief joins those that are written within a minute, and at the end of its training
    those that were written later.  The first step of a session runs as traced ones do, since TensorFlow prepares the
    graph once more for these.  A failure is logged, and the training continues.

    `step` is to be called with the result of every step, after its run, and `leave` when another loop continues.
    """

    def __init__(self, run: WorkerRun, view_hook: ViewHook) -> None:
        self._run, self._view_hook = run, view_hook
        self._first, self._last = run.job.traced_steps
        self._mode = run.job.mode
        self._is_ready = False
        self._is_over = self._last == 0
        self._options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        self._asked: set[int] = set()  # ids of the contexts of runs that are traced
        self._ran: Proto = None
        self._steps: list[tuple[StepResult, Proto]] = []
        self._clocks_are: tuple[Offsets, float] | None = None  # and how far off one may be, in s
        self._task: Background[None] | None = None
        self._ends = threading.Event()
        if not self._is_over:
            self._folder = TraceFolder(run.job.checkpoint_dir, run.job.trace_steps)
            with run.graph.graph.as_default():
                self._clocks = [_clock(ps) for ps in range(run.job.ps)]

    def after_create_session(self, session: Session, coord: tf1.train.Coordinator) -> None:  # noqa: ARG002
        self._is_ready = False
        self._asked.clear()
        self._ran = None

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs | None:
        if self._is_over or not self._run.graph.is_step(run_context):
            return None
        if not self._is_ready:
            self._is_ready = True
            return tf1.train.SessionRunArgs(None)
        if not self._first <= self._view_hook.global_step + 1 < self._last:
            return None
        self._asked.add(id(run_context))
        return tf1.train.SessionRunArgs(None, options=self._options)

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        if self._is_over:
            return
        if id(run_context) in self._asked:
            self._asked.discard(id(run_context))
            self._ran = run_values.run_metadata
        if self._clocks_are is None and self._view_hook.global_step + 1 >= self._first:
            self._read_clocks(run_context.session)
        if self._ran is None and not self._asked and self._view_hook.global_step + 1 >= self._last:
            self._finish()

    def step(self, result: StepResult) -> None:
        """Adds the step that ran last, with this result, if it is traced."""
        if self._ran is not None:
            self._steps.append((result, self._ran))
            self._ran = None

    def leave(self) -> None:
        """Writes the steps that were traced up to now."""
        if not self._is_over:
            self._finish()
        self._ends.set()

    def end(self, session: Session) -> None:  # noqa: ARG002
        """Writes the steps that were traced up to now, and joins them with the other parts: the training is over."""
        if self._last == 0:
            return
        was_cut = bool(self._steps)
        self.leave()
        if self._task:
            await_end(self._task, "the trace to be written", self._run.log, WRITE_S)
        if self._run.control_plane.is_chief():
            if was_cut:
                time.sleep(JOIN_EVERY_S)  # the others end with the chief, and write then
            self._safely(self._join)

    def _read_clocks(self, session: Session) -> None:
        """After D. L. Mills, RFC 5905: the fastest of several readings is that of the middle of its time."""
        readings = []
        try:
            for _ in range(CLOCK_READS):
                sent_s = time.time()
                read_s = session.run(self._clocks)
                back_s = time.time()
                middle_s = (sent_s + back_s) / 2
                readings.append((back_s - sent_s, [float(each) - middle_s for each in read_s]))
        except tf1.errors.OpError as error:
            self._run.log("trace_failed", reason=f"the clocks of the ps could not be read: {first_line(error)}")
            return  # the session is lost; another step tries again
        took_s, offsets = min(readings)
        self._clocks_are = offsets, took_s / 2

    def _finish(self) -> None:
        self._is_over = True
        steps, self._steps = self._steps, []
        if steps and self._clocks_are:
            offsets, off_by_s = self._clocks_are
            self._task = Background("trace", lambda: self._safely(lambda: self._write(steps, offsets, off_by_s)))
        elif steps:
            self._run.log("trace_failed", reason="the clocks of the ps could not be read")

    def _write(self, steps: list[tuple[StepResult, Proto]], offsets: Offsets, off_by_s: float) -> None:
        """The clock of ps 0 is that of the trace; the offset of another has the errors of two readings."""
        worker, to_ps_0 = self._run.index, offsets[0]
        shifts = {f"ps {ps}": to_ps_0 - offset for ps, offset in enumerate(offsets)}
        spans, left_out = [], 0
        for result, metadata in steps:
            assert result.times
            found, short = _run_spans(metadata.step_stats, worker, self._run.graph.graph, to_ps_0, shifts)
            spans += [*_step_spans(worker, result, result.times, to_ps_0), *found]
            left_out += short
        begin_s, end_s = min(span.begin_s for span in spans), max(span.end_s for span in spans)
        off_by_s *= 2 if len(offsets) > 1 else 1
        head = Head(worker, self._mode, off_by_s, begin_s, end_s, left_out)
        write_part(head, spans, self._folder.parts, f"worker-{worker}.from-{steps[0][0].global_step}")
        self._run.log("trace", steps=len(steps), path=self._folder.parts)
        until_s = time.monotonic() + JOIN_FOR_S
        while self._run.control_plane.is_chief() and time.monotonic() < until_s:
            if self._ends.wait(JOIN_EVERY_S):
                return
            self._join()

    def _join(self) -> None:
        joined = self._folder.update()
        for reason in joined.failures:
            self._run.log("trace_failed", reason=reason)
        if joined.workers:
            self._run.log("trace_joined", workers=joined.workers, path=self._folder.path)

    def _safely(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - no error of a trace ends the training
            self._run.log("trace_failed", reason=str(error) or type(error).__name__)


def _clock(ps: int) -> Tensor:
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
