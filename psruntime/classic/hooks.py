"""The hooks in a script's session: the one that counts and gates steps, and the wrappers of the script's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import tensorflow.compat.v1 as tf1

from psruntime.classic.arguments import LateWriter, late_writers
from psruntime.classic.counting import StepCounting
from psruntime.classic.prepare import ScriptSessions
from psruntime.faults import first_line
from psruntime.graph.base.errors import LOST_SESSION, is_closed
from psruntime.graph.session.worker_run import ControlPlane


@dataclass
class Tally:
    """Steps that were done since the script started."""

    steps: int = 0


class StepHook(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Comes before all others: ends a session whose view was replaced, and counts and gates steps, of any thread.

    Raises from a run:
        AbortedError: the view was replaced; the next session is opened and the run repeated.
        OutOfRangeError: the job drains, or the session is being closed, and the run would be a step; it ends a `with`
            block without an error.
        UsageError: the global step cannot be counted any further.
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
        self._stepped = False  # in the newest session
        self._changed = threading.Condition()  # guards what follows
        self._under_way: set[int] = set()  # threads with a step
        self._takes_none = False
        self._global_step = 0  # last read

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
        self._stepped = False

    def before_run(self, run_context: Any) -> Any:
        self._require_view()
        reads = self._counting.reads(run_context.original_args.fetches)
        if not reads:
            return None
        self._begin()
        self._require_view()  # it may have been waited for long
        return tf1.train.SessionRunArgs(reads)

    def _require_view(self) -> None:
        if not self._control_plane.is_current(self._sessions.assignment):
            raise tf1.errors.AbortedError(None, None, "the view or this worker's incarnation was replaced")

    def _begin(self) -> None:
        """Waits until a step may begin.  With a step of another thread under way it waits for the end of that."""
        self.failed()
        with self._changed:
            while not self._takes_none:
                if self._control_plane.may_step(len(self._under_way)):
                    self._counting.require_room(self._global_step)
                    self._under_way.add(threading.get_ident())
                    return
                if not self._under_way:
                    break
                self._changed.wait()
        raise tf1.errors.OutOfRangeError(None, None, "the job takes no further step")

    def after_run(self, run_context: Any, run_values: Any) -> None:  # noqa: ARG002
        if run_values.results is None:
            return
        global_step = int(max(run_values.results))
        with self._changed:
            self._under_way.discard(threading.get_ident())
            self._tally.steps += 1
            self._global_step = global_step
            self._control_plane.stepped(global_step)
            is_first, self._stepped = not self._stepped, True
            self._changed.notify_all()
        if is_first:
            self._log("first_step", global_step=global_step)

    def failed(self) -> None:
        """Whatever step this thread had under way has ended, by an error."""
        if threading.get_ident() in self._under_way:
            with self._changed:
                self._under_way.discard(threading.get_ident())
                self._changed.notify_all()

    def take_no_more(self, within_s: float) -> None:
        """From now on no step begins; those of other threads end first, in this time if they do."""
        with self._changed:
            self._takes_none = True
            self._changed.wait_for(lambda: not self._under_way, within_s)


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
        except (*LOST_SESSION, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not is_closed(error):
                raise
            self._log("hook_failed", hook=type(self._hook).__name__, reason=first_line(error))

    def finish(self, session: Any) -> None:
        """Calls `end` unless that was done.  One that a lost session interrupted may be called again."""
        if not self._ended:
            self._hook.end(session)
            self._ended = True


class ChiefOnly(Wrapped):
    """A hook that acts while this worker is the chief, which may begin at any time and end.

    Its `begin` comes on every worker, because it may add to the graph; its `after_create_session` when it begins to
    act in a session.  Of the runs of several threads it sees one after the other.
    """

    def __init__(
        self, hook: Any, is_chief: Callable[[], bool], on_chief: Callable[[], None], log: Callable[..., None]
    ) -> None:
        super().__init__(hook, log)
        self._is_chief = is_chief
        self._on_chief = on_chief
        self._session: tuple[Any, Any] = (None, None)  # and its coordinator
        self._acts = False
        self._seen: WeakSet[Any] = WeakSet()  # runs that it acts in
        self._lock = threading.RLock()
        self._writers: list[LateWriter] = []

    def begin(self) -> None:
        with late_writers() as self._writers:
            self._hook.begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        with self._lock:
            self._session, self._acts = (session, coord), False
            self._update()

    def before_run(self, run_context: Any) -> Any:
        with self._lock:
            if not self._update():
                return None
            self._seen.add(run_context)
            return self._hook.before_run(run_context)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        with self._lock:
            if self._acts and run_context in self._seen:
                super().after_run(run_context, run_values)

    def finish(self, session: Any) -> None:
        with self._lock:
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
        chief = self._is_chief()
        if chief and not self._acts:
            self._on_chief()
            self._hook.after_create_session(*self._session)
        self._acts = chief
        return chief
