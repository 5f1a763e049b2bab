"""Steps of the async and the bounded mode: one run of the graph pulls, computes and pushes.

With a pipeline several steps are under way, each in a thread of its own: while one computes, the next pulls and the
last pushes.  They begin and end in order; between that they may overtake each other.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import APPLIED, SentUpdate, are_final, outcome_of, word_of
from psruntime.core.members.view import View
from psruntime.errors import JobFailedError
from psruntime.graph.base.errors import LOST_SESSION
from psruntime.graph.base.types import Array, Session
from psruntime.graph.loop.step_runner import Ran, Started, StepRunner
from psruntime.graph.session.session import ViewHook, ViewSessionCreator
from psruntime.graph.session.worker_run import StepResult, WorkerRun, require_finite
from psruntime.observe.meter import GATE, StepTimes


@dataclass
class _Step:
    """A step that was begun.  run: in the newest session in which it was begun; None: that session was lost.

    waits_s, draws_s: when it began to wait at the gate, and for its batch, since 1970.
    """

    sequence: int
    batch: list[Array]
    waits_s: float
    draws_s: float
    run: tuple[Started, Future[Ran]] | None = None
    failures: int = 0  # of this batch, in the user's code
    view: View | None = None  # that of the session


class AsyncLoop:
    """Takes steps as long as the job trains, with at most `pipeline` of them under way.

    A step that a lost session interrupted is repeated in the next one.  The repeat carries the same origin and sequence
    number, also if this worker was admitted anew meanwhile, so a bucket that had already taken the first try counts
    the second as repeated.  So it is with a step that failed in the user's code (input/batches.py).

    on_step: called with the result of every step.  has_stopped: whether a hook of the model wants no further one.
    """

    def __init__(
        self,
        run: WorkerRun,
        creator: ViewSessionCreator,
        runner: StepRunner,
        view_hook: ViewHook,
        on_step: Callable[[StepResult], None],
        has_stopped: Callable[[], bool],
    ) -> None:
        self._graph = run.graph
        self._inputs = run.inputs
        self._control_plane = run.control_plane
        self._index = run.index
        self._pipeline = run.job.pipeline
        self._stop_on_nan = run.job.stops_on_nan
        self._data_errors = run.data_errors
        self._creator = creator
        self._runner = runner
        self._view_hook = view_hook
        self._threads = _Threads(run.job.pipeline)
        self._on_step = on_step
        self._has_stopped = has_stopped
        self._on_update = run.observers.on_update
        rule = run.job.staleness_rule
        self._weight = rule.weight if rule else (lambda _: 1.0)
        self._waited_s = 0.0  # at the gate, since the last update was reported
        self._begun = 0
        self._waits_for_shard = False
        self._log, self._warned_rate = run.log, ""
        self._origin = secrets.randbits(62)
        self._under_way: deque[_Step] = deque()  # oldest first

    def run(self, session: Session) -> None:
        """Takes steps until training stops; then none is under way.

        Raises:
            JobFailedError: the loss is not finite, and that ends the job.
        """
        session.run_step_fn(self._train)  # again in the next session, when one is lost

    def leave(self) -> None:
        """What a lost session interrupted was undone with it, so its batches are not in the variables."""
        for step in reversed(self._under_way):
            self._inputs.give_back(step.batch)
        self._under_way.clear()

    def _train(self, step_context: tf1.train.MonitoredSession.StepContext) -> None:  # noqa: ARG002
        try:
            for step in self._under_way:
                if step.run is None:
                    self._send(step)
            while True:
                while self._is_over():
                    self._end()
                if self._begin():
                    continue
                if not self._under_way:
                    return
                self._end()
        finally:
            self._settle()

    def _is_over(self) -> bool:
        """Whether the oldest step has ended."""
        step = self._under_way[0] if self._under_way else None
        return step is not None and step.run is not None and step.run[1].done()

    def _begin(self) -> bool:
        """Begins a step if it may; returns whether to begin another.  Steps under way wait for no batch."""
        under_way = len(self._under_way)
        if under_way == self._pipeline or self._has_stopped() or (under_way and not self._inputs.is_ready):
            return False
        came_s, waits_s = time.monotonic(), time.time()
        may_step = self._control_plane.may_step(under_way)
        self._waited_s += time.monotonic() - came_s
        if not may_step:
            return False
        # In a session that was lost nothing is begun: in the next one it is asked again.
        self._view_hook.before_run(None)
        draws_s = time.time()
        batch = self._next_batch()
        if batch is None:
            return under_way == 0 and self._is_current()
        self._begun += 1
        self._under_way.append(_Step(self._begun, batch, waits_s, draws_s))
        self._send(self._under_way[-1])
        return True

    def _next_batch(self) -> list[Array] | None:
        """None: others have all shards that are left; the next call waits for one a while."""
        waited = self._waits_for_shard
        if waited and not self._under_way:
            self._control_plane.waits_for_shard(self._why_none, no_step_under_way=True)  # before it is waited for
        batch = self._inputs.draw_if_any()
        self._waits_for_shard = batch is None
        if batch is None or waited:
            self._control_plane.waits_for_shard(
                self._why_none if batch is None else "", no_step_under_way=not self._under_way
            )
        return batch

    @property
    def _why_none(self) -> str:
        return self._inputs.why_none or "none is there yet"

    def _is_current(self) -> bool:
        return self._control_plane.is_current(self._creator.assignment)

    def _send(self, step: _Step) -> None:
        assignment = self._creator.assignment
        feed = dict(zip(self._graph.model.batch, step.batch, strict=True))
        push_id = (self._index, assignment.incarnation, step.sequence, self._origin)
        feed[self._graph.request.fed] = self._graph.request.values(
            push_id, self._view_hook.global_step, is_chief=self._control_plane.is_chief()
        )
        if (odd := self._graph.request.odd_rate) and self._stop_on_nan:
            raise JobFailedError(f"{odd}; it was not applied")
        if odd and self._warned_rate != odd:
            self._warned_rate = odd
            self._log("rate_not_finite", reason=f"{odd}; nothing is applied until it is finite")
        started = self._runner.start(feed)
        self._control_plane.count_push()
        step.view = assignment.view
        step.run = started, self._threads.submit(started.run)

    def _end(self) -> None:
        """Waits for the oldest step, and reports its result."""
        step = self._under_way[0]
        assert step.run is not None
        started, future = step.run
        try:
            ran = future.result()
        except tf1.errors.OpError as error:
            self._repeat(step, error)
            return
        self._data_errors.succeeded()
        self._under_way.popleft()
        fetched = self._runner.finish(started, ran)
        result = _read(fetched, self._inputs.examples(step.batch), ran.times(GATE, step.waits_s, step.draws_s))
        (self._inputs.applied if result.counted else self._inputs.put_back)(step.batch)
        self._control_plane.stepped(result.global_step)
        self._on_step(result)
        if self._on_update:
            self._on_update(self._sent(step, result, fetched["outcomes"]))
        if self._stop_on_nan:
            require_finite(result)

    def _sent(self, step: _Step, result: StepResult, outcomes: list[Array]) -> SentUpdate:
        """outcomes: of the buckets per ps; the last of ps 0 is that of the global step, which is no parameter."""
        of_parameters = np.concatenate([outcomes[0][:-1], *outcomes[1:]]).tolist()
        assert step.view
        waited_s, self._waited_s = self._waited_s, 0.0
        outcome, view = outcome_of(of_parameters, self._weight), word_of(step.view)
        return SentUpdate(step.sequence, view, result.global_step, outcome, result.loss, result.examples, waited_s)

    def _repeat(self, step: _Step, error: tf1.errors.OpError) -> None:
        """Sends a step again that failed in the user's code, with another batch if this one was given up."""
        step.run = None  # what it raised is known; the next session sends it if this one is lost meanwhile
        gives_up = self._data_errors.step_failed(error, self._graph.graph, step.failures + 1)
        step.failures += 1
        if gives_up:
            self._inputs.applied(step.batch)
            batch, step.failures = self._next_batch(), 0
            if batch is None:
                self._under_way.remove(step)
                return
            step.batch = batch
        self._send(step)

    def _settle(self) -> None:
        """Waits until nothing runs, and notes which steps a lost session interrupted: they are sent again."""
        for step in self._under_way:
            if step.run is not None and isinstance(step.run[1].exception(), LOST_SESSION):
                step.run = None


def _read(fetched: dict[str, Any], examples: int, times: StepTimes) -> StepResult:
    outcomes = np.concatenate(fetched["outcomes"])
    applied = outcomes[outcomes[:, 0] == APPLIED]
    return StepResult(
        loss=float(fetched["loss"]),
        finite=bool(fetched["finite"]),
        global_step=int(fetched["global_step"]),
        examples=examples,
        staleness=int(applied[:, 1].max()) if len(applied) else None,
        dropped=len(outcomes) - len(applied),
        counted=are_final(outcomes[:, 0].tolist()),
        times=times,
        weight=float(fetched.get("examples", 0.0)),
    )


class _Threads:
    """Threads that run steps beside each other; with a `count` of 1, a step runs in the caller's thread.

    They are daemons: whatever they hang in, the process can end.
    """

    def __init__(self, count: int) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._call = self._queue.put  # does not block
        self._alone = count == 1
        for number in range(0 if self._alone else count):
            threading.Thread(target=self._serve, name=f"step-{number}", daemon=True).start()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Runs the call.  The future has what it returns or raises."""
        future: Future[Any] = Future()
        if self._alone:
            _run(call, future)
        else:
            self._call((call, future))
        return future

    def _serve(self) -> None:
        while True:
            _run(*self._queue.get())


def _run(call: Callable[[], Any], future: Future[Any]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - raised where the result is read
        future.set_exception(error)
    else:
        future.set_result(result)
