"""Hooks of a script's session: what makes a run a step, and the user's and stock's own hooks in their wrappers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.classic.counting import StepCounting
from psruntime.classic.sessions import ScriptSessions
from psruntime.classic.writers import LateWriter, late_writers
from psruntime.graph.base.errors import LOST_SESSION, first_line
from psruntime.graph.session.control_plane import ControlPlane


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
