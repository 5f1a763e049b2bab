"""The session that a script has, from any of its threads; it ends with the job."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn

import tensorflow.compat.v1 as tf1

from psruntime.classic.hooks import ChiefOnly, StepHook, Wrapped
from psruntime.classic.member import ScriptMember, code_of_sigterm
from psruntime.classic.prepare import ScriptSessions
from psruntime.classic.shared_session import SharedSession
from psruntime.core.members.messages import Ending, LeaveKind
from psruntime.errors import JobDoneError, JobOverError, JobStoppedError, PsRuntimeError, ReplacedError, StopRequested
from psruntime.faults import first_line
from psruntime.graph.base.errors import LOST_SESSION
from psruntime.observe.log import TRACEBACK

CLEAN_ENDS = (None, tf1.errors.OutOfRangeError, StopIteration)  # of a `with` block, as stock has them


class ScriptSession(tf1.train.MonitoredSession):  # type: ignore[misc]
    """Made by MonitoredTrainingSession, which says how it behaves, or by Supervisor.

    Hooks: first `step_hook`, then those that act on the chief alone, then everybody's.
    has_services: whether the chief's hooks act in `serve` alone, and not in the script's runs; the caller starts the
    queue runners, then.
    """

    def __init__(
        self,
        member: ScriptMember,
        sessions: ScriptSessions,
        step_hook: StepHook,
        chief_hooks: Sequence[ChiefOnly],
        worker_hooks: Sequence[Wrapped],
        stop_grace_period_secs: float,
        has_services: bool = False,
    ) -> None:
        self._member = member
        self._sessions = sessions
        self._step_hook = step_hook
        self._chief_hooks = chief_hooks
        self._worker_hooks = worker_hooks
        self._grace_s = stop_grace_period_secs
        self._has_services = has_services
        self._graph = tf1.get_default_graph()
        self._leaving = threading.Lock()  # taken once and for ever, by who leaves the block
        self._left = threading.Event()
        super(tf1.train.MonitoredSession, self).__init__(
            sessions, [step_hook, *chief_hooks, *worker_hooks], should_recover=False,
            stop_grace_period_secs=stop_grace_period_secs,
        )  # fmt: skip

    def _CoordinatedSessionCreator(
        self, session_creator: Any, hooks: Sequence[Any], stop_grace_period_secs: float
    ) -> SharedSession:
        of_runs = [hook for hook in hooks if not (self._has_services and hook in self._chief_hooks)]
        return SharedSession(
            session_creator, hooks, of_runs, self._chief_hooks, stop_grace_period_secs, not self._has_services
        )

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """As tf.train.MonitoredSession, from any thread; a step raises OutOfRangeError once the job takes none."""
        with self._in_use() as shared:
            return shared.run(fetches, feed_dict, options, run_metadata)

    def run_step_fn(self, step_fn: Any) -> Any:
        """As tf.train.MonitoredSession."""
        with self._in_use():
            return super().run_step_fn(step_fn)

    def serve(self, fetches: Any) -> None:
        """Lets the chief's hooks do what is due, in a run of their own."""
        with self._in_use() as shared:
            shared.serve(fetches)

    def with_raw(self, use: Any) -> Any:
        """As SharedSession."""
        with self._in_use() as shared:
            return shared.with_raw(use)

    @property
    def is_chief(self) -> bool:
        """Whether this worker is the chief now."""
        return self._member.joined.control_plane.is_chief()

    def should_stop(self) -> bool:
        """Whether a hook asked to stop, the session is being closed, or the job takes no further step."""
        with self._graph.as_default():
            return self._leaving.locked() or bool(super().should_stop()) or not self._member.takes_steps()

    def close(self) -> None:
        """Waits until the job is done, then closes the session and leaves.  Once; a second call raises RuntimeError.

        Steps of other threads end first, and no other begins.
        """
        if not self._leaving.acquire(blocking=False):
            raise RuntimeError("the session is closed")
        try:
            self._step_hook.take_no_more(self._grace_s)
            with self._ending_the_script(), self._graph.as_default():
                self._await_end()
        except BaseException as error:
            self._member.fail(error)
            raise
        finally:
            with self._graph.as_default():
                super().close()
            self._member.leave(LeaveKind.OVER, "the job is done")
            self._left.set()

    @property
    def has_left(self) -> bool:
        """Whether this worker has left the job."""
        return self._left.is_set()

    def await_left(self) -> None:
        """Waits until the thread that closes the session has left the job.

        Raises:
            SystemExit: an error of the job ends the script.
        """
        self._left.wait()
        if self._member.exit_code:
            raise SystemExit(self._member.exit_code)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._leaving.locked():  # by another thread, or in the block
            self.await_left()
            return kind in CLEAN_ENDS
        if kind in CLEAN_ENDS:
            self.close()
            return True
        assert value is not None
        self._leaving.acquire(blocking=False)
        self._member.fail(value)
        try:
            with self._graph.as_default():
                return bool(super().__exit__(kind, value, trace))
        finally:
            self._left.set()

    def _await_end(self) -> None:
        """Waits until the job is done; as chief, ends it when all have stopped."""
        control_plane, lost = self._member.joined.control_plane, False
        while True:
            try:
                if lost:
                    self._sessions.renew()
                    lost = False
                self._finish(self._worker_hooks)
                ending = control_plane.await_end(self._sessions.assignment)
                if ending is Ending.OVER:
                    if error := self._member.was_stopped:
                        raise error
                    return
                if ending is Ending.CLOSE:
                    self._close_job()
                else:
                    lost = True
            except JobDoneError:
                return
            except LOST_SESSION as error:
                control_plane.back_off(f"a ps was lost while the job ended: {first_line(error)}")
                lost = True

    def _close_job(self) -> None:
        """Everybody has stopped: the chief's hooks write what is last."""
        assignment, control_plane = self._sessions.assignment, self._member.joined.control_plane
        self._finish(self._chief_hooks)
        if not control_plane.is_current(assignment):
            return
        try:
            control_plane.report_finished(assignment)
        except ReplacedError as error:
            control_plane.back_off(str(error))

    def _finish(self, hooks: Sequence[Wrapped]) -> None:
        for hook in hooks:
            hook.finish(self._sessions.session)
            self._member.joined.control_plane.closed_part()

    @contextmanager
    def _in_use(self) -> Iterator[SharedSession]:
        """A run in the script's graph, whatever thread it is in."""
        shared = self._sess
        if shared is None:
            raise RuntimeError("the session is closed")
        try:
            with self._ending_the_script(), self._graph.as_default():
                yield shared
        finally:
            self._step_hook.failed()

    @contextmanager
    def _ending_the_script(self) -> Iterator[None]:
        """What psruntime raises ends the script; that the job is done ends its loop."""
        try:
            yield
        except JobDoneError as error:
            raise tf1.errors.OutOfRangeError(None, None, str(error)) from error
        except PsRuntimeError as error:
            end_script(self._member, error)


ScriptSession.__name__ = "MonitoredSession"  # by which tf.train.start_queue_runners knows that it starts its own


def end_script(member: ScriptMember, error: PsRuntimeError) -> NoReturn:
    """Leaves the job, says why in one line and ends the script with the code that belongs to it.

    Another thread of the script, in which this comes later, ends with the same code.
    """
    if member.exit_code is not None:
        raise SystemExit(member.exit_code) from error
    is_asked = member.was_asked and isinstance(error, StopRequested | JobStoppedError)
    member.exit_code = code_of_sigterm() if is_asked else error.exit_code
    member.fail(error)
    if is_asked:
        member.log("stopping", reason=error)
        raise SystemExit(member.exit_code) from error
    event = "over" if isinstance(error, JobOverError) else "error"
    member.log(event, reason=error, **({TRACEBACK: error.detail} if error.detail else {}))
    raise SystemExit(member.exit_code) from error
