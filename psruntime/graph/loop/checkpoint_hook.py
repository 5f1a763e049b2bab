"""When a checkpoint is written: by the chief, in a thread of its own, while the training goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.saved_state import SavedState
from psruntime.errors import CheckpointError, ReplacedError
from psruntime.graph.base.background import Background, await_end
from psruntime.graph.base.errors import LOST_SESSION, first_line
from psruntime.graph.checkpoint.checkpoints import Checkpoints, Transferred
from psruntime.graph.loop.worker_run import WorkerRun

ABANDON_S = 10.0  # what a write gets to end after its session was lost; a disk may hang
FAILED_S = 5.0  # after a failure, until one that somebody waits for is tried again
LATE_S = 10.0  # a write that takes longer, while the next one is due, is worth a line in the log


class CheckpointHook(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Saves, while this worker is the chief, every `save_steps` global steps, and when `closing` is run; if anything
    was trained since the latest one, also after `save_secs`, and when the control plane wants one.

    A periodic one is copied between two steps, and written while the next ones run.  One that is due before that has
    ended is made once it has; if that takes long the log says so.

    closing: a fetch, the global step; running it saves what the ps hold.  A lost session interrupts it like
    a step: it is repeated in the next one.
    global_step: gives it as this worker last saw it.
    saved: called with each checkpoint that is written here, and its global step.

    A periodic save that fails is reported and tried again a tenth of `save_steps` later.  One that fails while closing
    is tried again for half the drain timeout; then it is the job's failure.

    What fails because a successor is at work is no failure: ReplacedError.

    incarnation: gives this worker's, in its session.
    """

    def __init__(
        self,
        run: WorkerRun,
        checkpoints: Checkpoints,
        global_step: Callable[[], int],
        incarnation: Callable[[], int],
        saved: Callable[[str, int], None] | None,
    ) -> None:
        self._graph = run.graph
        self.closing = run.graph.step_reader()
        self._checkpoints = checkpoints
        self._save_steps = run.job.save_steps
        self._save_secs = run.job.save_secs or math.inf
        self._global_step = global_step
        self._is_chief = run.control_plane.is_chief
        self._is_wanted = run.control_plane.wants_checkpoint
        self._incarnation = incarnation
        self._pause = run.control_plane.pause
        self._report_saves = run.control_plane.saves
        self._report_saved = run.control_plane.saved
        self._retry_s = run.job.drain_timeout_s / 2
        self._saved = saved
        self._log = run.log
        self._saved_at = 0
        self._saved_s = time.monotonic()
        self._failed_s = -math.inf  # when the latest failure was
        self._writing: tuple[SavedState, Background[Transferred]] | None = None
        self._told_late = -1  # global step of the one of which the log says that the next waits for it

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
        """The next one is due as if the sessions were one, so that they may come and go faster than checkpoints."""
        self._finish(ABANDON_S)
        global_step = int(session.run(self.closing))
        newest = self._checkpoints.newest_step()
        self._saved_at = global_step if newest is None or newest > global_step else newest

    def after_run(self, run_context: Any, run_values: Any) -> None:  # noqa: ARG002
        if run_context.original_args.fetches is self.closing:
            self._finish()
            self._save(run_context.session)
        elif self._graph.is_step(run_context):
            if self._writing and not self._writing[1].is_alive():
                self._finish()
            global_step = self._global_step()
            if self._is_due(global_step) and self._is_chief():
                if self._writing:
                    self._note_late(*self._writing)
                else:
                    self._begin(run_context.session, global_step)

    def end(self, session: Any) -> None:  # noqa: ARG002
        self._finish()

    def _is_due(self, global_step: int) -> bool:
        trained = global_step - self._saved_at
        now_s = time.monotonic()
        wanted = self._is_wanted() and now_s - self._failed_s >= FAILED_S
        soon = wanted or now_s - self._saved_s >= self._save_secs
        return trained >= self._save_steps or (trained > 0 and soon)

    def _begin(self, session: Any, global_step: int) -> None:
        """The step is done and counted, so nothing that goes wrong here may make MonitoredSession repeat it."""
        self._saved_at, self._saved_s = global_step, time.monotonic()
        self._report_saves(True)
        try:
            self._require_chief(session)
            state = self._copy(session)
        except (CheckpointError, ReplacedError) as error:
            self._failed(str(error))
        except LOST_SESSION as error:
            self._failed(first_line(error))  # the next step finds the session lost
        else:
            if state:
                self._writing = state, Background("checkpoint", partial(self._write, session, state))
        finally:
            if self._writing is None:
                self._report_saves(False)

    def _write(self, session: Any, state: SavedState) -> Transferred:
        """Says at once what became of it, also if this worker does not take another step."""
        try:
            moved = self._checkpoints.write(session, state)
            self._report_saved(state.global_step)
            return moved
        finally:
            self._report_saves(False)

    def _save(self, session: Any) -> None:
        """The last one.  Nobody pushes any more, so nothing is lost while it is tried again."""
        until_s = time.monotonic() + self._retry_s
        while True:
            self._require_chief(session)
            try:
                state = self._copy(session)
                if state:
                    self._written(state, self._write(session, state))
                return
            except CheckpointError as error:
                self._require_chief(session)
                if time.monotonic() > until_s:
                    raise
                self._failed(str(error))
                self._pause(str(error))

    def _require_chief(self, session: Any) -> None:
        self._graph.fence.require_admitted(session, self._incarnation())

    def _copy(self, session: Any) -> SavedState | None:
        write = partial(self._graph.fence.run, session, self._incarnation())
        spoilt = self._graph.model.worker_copies.bring(write)
        if spoilt:
            self._log("not_finite", variables=" ".join(spoilt), reason="the checkpoint has their last finite values")
        state = self._checkpoints.copy(session)
        if state:
            self._saved_at = state.global_step
        return state

    def _finish(self, within_s: float | None = None) -> None:
        """Waits for what is being written, and says what became of it."""
        if self._writing is None:
            return
        (state, writing), self._writing = self._writing, None
        await_end(writing, f"checkpoint {state.global_step} to be written", self._log, within_s)
        if writing.is_alive():
            self._failed(f"checkpoint {state.global_step} is still being written, and its session is lost")
        elif writing.result:
            self._written(state, writing.result)
        else:
            self._failed(writing.failure)

    def _note_late(self, state: SavedState, writing: Background[Transferred]) -> None:
        """Once for each that takes long."""
        if writing.age_s >= LATE_S and self._told_late != state.global_step:
            self._told_late = state.global_step
            reason = f"checkpoint {state.global_step} is still being written, and the next one is due"
            self._log("checkpoint_late", reason=reason)

    def _written(self, state: SavedState, moved: Transferred) -> None:
        self._log("checkpoint", path=moved.path, sharded=moved.sharded, spread=state.spread)
        if self._saved:
            self._saved(moved.path, state.global_step)

    def _failed(self, reason: str) -> None:
        self._log("checkpoint_failed", reason=reason)
        self._failed_s = time.monotonic()
        self._saved_at += max(1, self._save_steps // 10) - self._save_steps
