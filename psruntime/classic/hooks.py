"""The session that a script has, which ends with the job, and the hooks in it, in their wrappers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn

import tensorflow.compat.v1 as tf1

from psruntime.classic.arguments import LateWriter, late_writers
from psruntime.classic.identity import StepCounting
from psruntime.classic.member import ScriptMember, code_of_sigterm
from psruntime.classic.prepare import ScriptSessions
from psruntime.core.members.messages import Ending, LeaveKind
from psruntime.errors import JobDoneError, JobOverError, JobStoppedError, PsRuntimeError, ReplacedError, StopRequested
from psruntime.faults import first_line
from psruntime.graph.base.errors import LOST_SESSION
from psruntime.graph.session.worker_run import ControlPlane
from psruntime.observe.log import TRACEBACK


@dataclass
class Tally:
    """Steps that were done since the script started."""

    steps: int = 0


class StepHook(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Comes before all others: ends a session whose view was replaced, and counts and gates steps.

    Raises from a run:
        AbortedError: the view was replaced; MonitoredSession opens the next session and repeats the run.
        OutOfRangeError: the job drains and the run would be a step; it ends a `with` block without an error.
    """

    def __init__(
        self,
        counting: StepCounting,
        sessions: ScriptSessions,
        control_plane: ControlPlane,
        tally: Tally,
        log: Callable[..., None],
    ) -> None:
        self._tally = tally
        self._counting = counting
        self._sessions = sessions
        self._control_plane = control_plane
        self._log = log
        self._reads: list[Any] = []
        self._stepped = False  # in the newest session

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
        self._stepped = False

    def before_run(self, run_context: Any) -> Any:
        self._require_view()
        self._reads = self._counting.reads(run_context.original_args.fetches)
        if not self._reads:
            return None
        if not self._control_plane.may_step():
            raise tf1.errors.OutOfRangeError(None, None, "the job takes no further step")
        self._require_view()  # it may have been waited for long
        return tf1.train.SessionRunArgs(self._reads)

    def _require_view(self) -> None:
        if not self._control_plane.is_current(self._sessions.assignment):
            raise tf1.errors.AbortedError(None, None, "the view or this worker's incarnation was replaced")

    def after_run(self, run_context: Any, run_values: Any) -> None:  # noqa: ARG002
        if not self._reads:
            return
        global_step = int(max(run_values.results))
        self._tally.steps += 1
        self._control_plane.stepped(global_step)
        if not self._stepped:
            self._stepped = True
            self._log("first_step", global_step=global_step)


class Wrapped(tf1.train.SessionRunHook):  # type: ignore[misc]
    """A hook whose `end` comes once, when the session is about to rest, and not when it is closed.

    A lost session after a run is only reported: the step is done, and MonitoredSession would repeat it.
    """

    def __init__(self, hook: Any, log: Callable[..., None]) -> None:
        self._hook = hook
        self._log = log
        self._ended = False

    def begin(self) -> None:
        self._hook.begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._hook.after_create_session(session, coord)

    def before_run(self, run_context: Any) -> Any:
        return self._hook.before_run(run_context)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        try:
            self._hook.after_run(run_context, run_values)
        except LOST_SESSION as error:
            self._log("hook_failed", hook=type(self._hook).__name__, reason=first_line(error))

    def finish(self, session: Any) -> None:
        """Calls `end` unless that was done.  One that a lost session interrupted may be called again."""
        if not self._ended:
            self._hook.end(session)
            self._ended = True


class ChiefOnly(Wrapped):
    """A hook that acts while this worker is the chief, which may begin at any time and end.

    Its `begin` comes on every worker, because it may add to the graph; its `after_create_session` when it begins to
    act in a session.
    """

    def __init__(
        self, hook: Any, control_plane: ControlPlane, on_chief: Callable[[], None], log: Callable[..., None]
    ) -> None:
        super().__init__(hook, log)
        self._control_plane = control_plane
        self._on_chief = on_chief
        self._session: tuple[Any, Any] = (None, None)  # and its coordinator
        self._acts = False
        self._writers: list[LateWriter] = []

    def begin(self) -> None:
        with late_writers() as self._writers:
            self._hook.begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._session, self._acts = (session, coord), False
        self._update()

    def before_run(self, run_context: Any) -> Any:
        return self._hook.before_run(run_context) if self._update() else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self._acts:
            super().after_run(run_context, run_values)

    def finish(self, session: Any) -> None:
        if session is not self._session[0]:
            self._session, self._acts = (session, self._session[1]), False
        if self._update():
            super().finish(session)

    def end(self, session: Any) -> None:  # noqa: ARG002
        """Flushes what this worker wrote while it was the chief, also if it no longer is."""
        for writer in self._writers:
            writer.flush()

    def _update(self) -> bool:
        """Updates and returns whether the hook acts; calls its `after_create_session` when it begins to."""
        chief = self._control_plane.is_chief()
        if chief and not self._acts:
            self._on_chief()
            self._hook.after_create_session(*self._session)
        self._acts = chief
        return chief


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
        raise SystemExit(code_of_sigterm()) from error
    event = "over" if isinstance(error, JobOverError) else "error"
    member.log(event, reason=error, **({TRACEBACK: error.detail} if error.detail else {}))
    raise SystemExit(error.exit_code) from error
