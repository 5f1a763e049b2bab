"""The session that a script holds: a MonitoredSession that ends with the job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn

import tensorflow.compat.v1 as tf1

from psruntime.classic import sigterm
from psruntime.classic.hooks import ChiefOnly, StepHook, Wrapped
from psruntime.classic.member import ScriptMember
from psruntime.classic.sessions import ScriptSessions
from psruntime.core.members.messages import Ending, LeaveKind
from psruntime.errors import JobDoneError, JobOverError, JobStoppedError, PsRuntimeError, ReplacedError, StopRequested
from psruntime.graph.base.errors import LOST_SESSION, first_line
from psruntime.observe.log import TRACEBACK

CLEAN_ENDS = (None, tf1.errors.OutOfRangeError, StopIteration)  # of a `with` block, as stock has them


class ScriptSession(tf1.train.MonitoredSession):  # type: ignore[misc]
    """Made by MonitoredTrainingSession, which says how it behaves.

    Hooks: first `step_hook`, then those that act on the chief alone, then everybody's.
    """

    def __init__(
        self,
        member: ScriptMember,
        sessions: ScriptSessions,
        step_hook: StepHook,
        chief_hooks: Sequence[ChiefOnly],
        worker_hooks: Sequence[Wrapped],
        stop_grace_period_secs: float,
    ) -> None:
        self._member = member
        self._sessions = sessions
        self._chief_hooks = chief_hooks
        self._worker_hooks = worker_hooks
        self._left = False  # the block
        super().__init__(
            session_creator=sessions,
            hooks=[step_hook, *chief_hooks, *worker_hooks],
            stop_grace_period_secs=stop_grace_period_secs,
        )

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        """As tf.train.MonitoredSession; a step raises OutOfRangeError once the job takes none."""
        with self._ending_the_script():
            return super().run(fetches, feed_dict, options, run_metadata)

    def run_step_fn(self, step_fn: Any) -> Any:
        """As tf.train.MonitoredSession."""
        with self._ending_the_script():
            return super().run_step_fn(step_fn)

    def should_stop(self) -> bool:
        """Whether a hook asked to stop, or the job takes no further step."""
        return bool(super().should_stop()) or not self._member.takes_steps()

    def close(self) -> None:
        """Rests until the job is done, then closes the session and leaves.  Once; a second call raises RuntimeError."""
        if self._left:
            raise RuntimeError("the session is closed")
        self._left = True
        try:
            with self._ending_the_script():
                self._await_end()
        except BaseException as error:
            self._member.fail(error)
            raise
        finally:
            super().close()
            self._member.leave(LeaveKind.OVER, "the job is done")

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if kind in CLEAN_ENDS:
            self.close()
            return True
        assert value is not None
        self._left = True
        self._member.fail(value)
        return bool(super().__exit__(kind, value, trace))

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
    def _ending_the_script(self) -> Iterator[None]:
        """What psruntime raises ends the script; that the job is done ends its loop."""
        try:
            yield
        except JobDoneError as error:
            raise tf1.errors.OutOfRangeError(None, None, str(error)) from error
        except PsRuntimeError as error:
            end_script(self._member, error)


def end_script(member: ScriptMember, error: PsRuntimeError) -> NoReturn:
    """Leaves the job, says why in one line and ends the script with the code that belongs to it."""
    member.fail(error)
    if member.was_asked and isinstance(error, StopRequested | JobStoppedError):
        member.log("stopping", reason=error)
        raise SystemExit(sigterm.code()) from error
    event = "over" if isinstance(error, JobOverError) else "error"
    member.log(event, reason=error, **({TRACEBACK: error.detail} if error.detail else {}))
    raise SystemExit(error.exit_code) from error
