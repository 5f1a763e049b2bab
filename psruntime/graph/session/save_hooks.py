"""Saves the variables while the training continues: on the chief, in a thread of its own, as checkpoints on a disk and
as replicas in the memory of other ps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import tensorflow.compat.v1 as tf1

from psruntime.errors import CheckpointError, DivergedError, FolderOwnedError, ReplacedError
from psruntime.faults import first_line
from psruntime.graph.base.errors import LOST_SESSION, Background, await_end
from psruntime.graph.base.types import Session
from psruntime.graph.checkpoint.checkpoints import Checkpoints, Copied, Transferred
from psruntime.graph.recovery.replicas import Replicas
from psruntime.graph.session.save_schedule import SaveSchedule
from psruntime.graph.session.session import ViewHook
from psruntime.graph.session.worker_run import WorkerRun

ABANDON_S = 10.0  # for a write, or sending, to end after its session was lost; a disk may hang
AGAIN_S = 60.0  # between two lines of the log that report that checkpoints fail
LATE_S = 10.0  # a write that takes longer, while the next one is due, is worth a line in the log


class CheckpointHook(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Saves, while this worker is the chief, every `save_steps` global steps, and when `closing` is run; if there were
    steps since the latest one, also after `save_secs`, and when the control plane wants one.

    A periodic one is copied between two steps, and written while the next ones run.  One that is due before the write
    has ended is made afterwards; if that takes long it is logged.

    With `delta_every` a delta is due after so many steps, too.  Also deltas are the one after `save_secs`, one that the
    control plane wants, and the first of two at the end, since it takes less time.

    closing: a fetch, the global step; running it saves the variables on the ps.  A lost session interrupts it like
    a step: it is repeated in the next one.

    A save that fails is reported, and logged once in AGAIN_S.  A periodic one is tried again a tenth of `save_steps`
    later, a delta a tenth of `delta_every`.  One that fails while closing is tried again for half the drain timeout;
    then it is the job's failure.

    A save that fails because another chief has replaced this one is no failure: ReplacedError.

    The position in the data shards is read before the copy, so that all shards that are done by then are in the copy.
    """

    def __init__(self, run: WorkerRun, checkpoints: Checkpoints, view_hook: ViewHook) -> None:
        self._graph = run.graph
        self.closing = run.graph.closing
        self._checkpoints = checkpoints
        self._has_deltas = run.job.delta_every > 0 and checkpoints.has_deltas
        delta_every = run.job.delta_every if self._has_deltas else 0
        save_secs = run.job.save_secs or math.inf
        self._schedule = SaveSchedule(run.job.whole_every, delta_every, save_secs, time.monotonic())
        if run.job.delta_every and not self._has_deltas:
            reason = "the touched rows of no table can be saved by themselves, so every checkpoint is whole"
            run.log("no_deltas", reason=reason)
        self._is_chief = run.control_plane.is_chief
        self._is_wanted = run.control_plane.wants_checkpoint
        self._view_hook = view_hook
        self._position = run.control_plane.shards.position if run.inputs.shards else lambda: None
        self._back_off = run.control_plane.back_off
        self._report_saves = run.control_plane.saves
        self._report_saved = run.control_plane.saved
        self._report_failed = run.control_plane.save_failed
        self._retry_s = run.job.drain_timeout_s / 2
        self._observers = run.observers
        self._log = run.log
        self._logged_s = -math.inf  # when the log had one, since a checkpoint was written
        self._writing: tuple[Copied, Background[Transferred]] | None = None
        self._reported_late = -1  # global step of the one that was logged as late

    def after_create_session(self, session: Session, coord: tf1.train.Coordinator) -> None:  # noqa: ARG002
        self._finish(ABANDON_S)
        global_step = self._step_there(session)
        newest, whole = self._checkpoints.newest_step(), self._checkpoints.newest_step(whole=True)
        self._schedule.entered(global_step, newest, whole)

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:  # noqa: ARG002
        if self._checkpoints.owner:
            self._checkpoints.owner.require()
        if run_context.original_args.fetches is self.closing:
            self._finish()
            self._save(run_context.session)
        elif self._graph.is_step(run_context):
            if self._writing and not self._writing[1].is_alive():
                self._finish()
            global_step = self._view_hook.global_step
            if self._is_due(global_step) and self._is_chief():
                if self._writing:
                    self._note_late(*self._writing)
                else:
                    self._begin(run_context.session, global_step)

    def on_pause(self, session: Session) -> None:
        """Makes a checkpoint that is due or wanted while no step runs."""
        if self._checkpoints.owner:
            self._checkpoints.owner.require()
        if self._writing and not self._writing[1].is_alive():
            self._finish()
        is_wanted = self._is_wanted() or self._is_due(self._view_hook.global_step)
        if self._writing or not (is_wanted and self._is_chief()):
            return
        try:
            global_step = self._step_there(session)  # other workers may have stepped after this one's last step
        except LOST_SESSION:
            return  # the next step finds the session lost, too
        if self._is_due(global_step):
            self._begin(session, global_step)

    def end(self, session: Session) -> None:  # noqa: ARG002
        self._finish()

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is being written from the session."""
        return self._writing is not None

    def leave(self) -> None:
        """Ends this hook's work: the session is lost, and another loop continues."""
        self._finish(ABANDON_S)

    def _step_there(self, session: Session) -> int:
        return int(session.run(self._graph.read_step))

    def _is_due(self, global_step: int) -> bool:
        return self._schedule.is_due(global_step, self._is_wanted(), time.monotonic())

    def _begin(self, session: Session, global_step: int) -> None:
        """Copies, and starts to write.  The step is done and counted, so no error here may make MonitoredSession repeat
        it."""
        is_whole = self._schedule.tried(global_step, time.monotonic())
        self._report_saves(True)
        try:
            self._require_chief(session)
            copied = self._copy(session, only_touched=not is_whole)
        except (CheckpointError, ReplacedError) as error:
            self._failed(str(error), is_whole)
        except LOST_SESSION as error:
            self._failed(first_line(error), is_whole)  # the next step finds the session lost
        else:
            if copied:
                self._writing = copied, Background("checkpoint", partial(self._write, session, copied))
        finally:
            if self._writing is None:
                self._report_saves(False)

    def _write(self, session: Session, copied: Copied) -> Transferred:
        """Writes, and reports the result at once, also if this worker does not make another step."""
        try:
            with self._reporting_failures():
                moved = self._checkpoints.write(session, copied)
            self._report_saved(copied.global_step)
            return moved
        finally:
            self._report_saves(False)

    def _save(self, session: Session) -> None:
        """Saves the last one.  No worker pushes any more, so nothing is lost while it is tried again.

        A delta is written before it, unless there is one: it saves the updates sooner than the whole one.
        """
        until_s = time.monotonic() + self._retry_s
        only_touched = self._has_deltas and self._checkpoints.newest_step() != self._step_there(session)
        while True:
            self._require_chief(session)
            try:
                copied = self._copy(session, only_touched, is_paused=True)
                if copied:
                    self._written(copied, self._write(session, copied))
                if copied is None or not copied.whole:
                    return
                only_touched = False
            except FolderOwnedError:
                raise
            except CheckpointError as error:
                only_touched = False
                self._require_chief(session)
                if time.monotonic() > until_s or isinstance(error, DivergedError):
                    raise
                self._failed(str(error))
                self._back_off("the last checkpoint cannot be written")

    def _require_chief(self, session: Session) -> None:
        self._graph.fence.require_admitted(session, self._view_hook.incarnation)

    def _copy(self, session: Session, only_touched: bool, is_paused: bool = False) -> Copied | None:
        write = partial(self._graph.fence.run, session, self._view_hook.incarnation)
        spoilt = self._graph.model.worker_copies.write_back(write)
        if spoilt:
            self._log("not_finite", variables=" ".join(spoilt), reason="the checkpoint has their last finite values")
        with self._reporting_failures():
            copied = self._checkpoints.copy(session, only_touched, is_paused, self._position())
        if copied:
            self._schedule.copied(copied.global_step, is_whole=not copied.whole)
        return copied

    @contextmanager
    def _reporting_failures(self) -> Iterator[None]:
        """Reports at once why a checkpoint is not written; a lost session is no failure of the folder."""
        try:
            yield
        except CheckpointError as error:
            self._report_failed(str(error))
            raise

    def _finish(self, within_s: float | None = None) -> None:
        """Waits for the write, and logs its result."""
        if self._writing is None:
            return
        (copied, writing), self._writing = self._writing, None
        await_end(writing, f"checkpoint {copied.global_step} to be written", self._log, within_s)
        if writing.is_alive():
            lost = f"checkpoint {copied.global_step} is still being written, and its session is lost"
            self._failed(lost, not copied.whole)
        elif writing.result:
            self._written(copied, writing.result)
        else:
            self._failed(writing.failure, not copied.whole)

    def _note_late(self, copied: Copied, writing: Background[Transferred]) -> None:
        """Logs once for each write that takes long."""
        if writing.age_s >= LATE_S and self._reported_late != copied.global_step:
            self._reported_late = copied.global_step
            reason = f"checkpoint {copied.global_step} is still being written, and the next one is due"
            self._log("checkpoint_late", reason=reason)

    def _written(self, copied: Copied, moved: Transferred) -> None:
        rows = {"rows": copied.changes.rows} if copied.changes else {}
        times = {"copy_s": round(copied.seconds, 3), "write_s": round(moved.seconds, 3)}
        self._logged_s = -math.inf
        self._log("checkpoint", path=moved.path, sharded=moved.sharded, spread=copied.state.spread, **rows, **times)
        self._observers.on_checkpoint(copied.seconds + moved.seconds)
        if not copied.whole:
            self._observers.on_saved(moved.path, copied.global_step)

    def _failed(self, reason: str, is_whole: bool = True) -> None:
        now_s = time.monotonic()
        self._schedule.failed(is_whole, now_s)
        if now_s - self._logged_s >= AGAIN_S:
            self._log("checkpoint_failed", reason=reason)
            self._logged_s = now_s


class ReplicaHook(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Copies the variables on the ps, while this worker is the chief, between two steps, every `every_steps` global
    steps.

    A copy is sent while the next steps run.  If the next one is due before, it waits: so fewer than twice
    `every_steps` are lost with a ps.  Other workers push between two steps of the chief, and while it waits; so the
    next copy is made before a step after which it would be late, and earlier if the last one took long to send.
    """

    def __init__(self, run: WorkerRun, replicas: Replicas, view_hook: ViewHook) -> None:
        self._graph = run.graph
        self._replicas = replicas
        self._every_steps = run.job.replicate_every
        self._is_chief = run.control_plane.is_chief
        self._view_hook = view_hook
        self._log = run.log
        self._made_at: int | None = None  # global step of the newest in this session
        self._seen = 0  # global step after the last step
        self._ahead = 0  # steps by which the next one is made earlier
        self._sending: Background[int] | None = None

    def after_create_session(self, session: Session, coord: tf1.train.Coordinator) -> None:  # noqa: ARG002
        self._finish(ABANDON_S)
        self._made_at = None

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:  # noqa: ARG002
        if not self._graph.is_step(run_context):
            return
        global_step = self._view_hook.global_step
        stride, self._seen = max(1, global_step - self._seen), global_step  # of all workers, in a step of this one
        if self._sending and not self._sending.is_alive():
            assert self._made_at is not None
            took = global_step - self._made_at
            self._ahead = min(took, self._every_steps // 2) if took > 2 * stride + 1 else 0
            self._finish()
        if self._is_due(global_step + stride + self._ahead) and self._is_chief():
            self._finish()
            self._made_at = global_step
            self._begin(run_context.session)

    def _is_due(self, next_step: int) -> bool:
        return self._made_at is None or next_step > self._made_at + self._every_steps

    def end(self, session: Session) -> None:  # noqa: ARG002
        self._finish()

    def _begin(self, session: Session) -> None:
        """Copies, and starts to send.  The step is done and counted, so no error here may make MonitoredSession repeat
        it."""
        incarnation = self._view_hook.incarnation
        try:
            self._graph.model.worker_copies.write_back(partial(self._graph.fence.run, session, incarnation))
            global_step = self._replicas.begin(session, incarnation)
        except (*LOST_SESSION, ReplacedError) as error:
            self._log("replica_failed", reason=first_line(error))  # the next step finds the session lost
            return

        def send() -> int:
            self._replicas.send(session, incarnation)
            self._replicas.finish(session, incarnation)
            return global_step

        self._sending = Background("replica", send)

    def _finish(self, within_s: float | None = None) -> None:
        """Waits until the copy is sent."""
        sending, self._sending = self._sending, None
        if sending is None:
            return
        await_end(sending, f"replica {self._made_at} to be sent", self._log, within_s)
        if sending.is_alive() or sending.result is None:
            reason = "it is still being sent, and its session is lost" if sending.is_alive() else sending.failure
            self._log("replica_failed", reason=reason)
