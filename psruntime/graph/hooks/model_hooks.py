"""The hooks of the model: StepsOnly passes one this worker's training steps, and none of the runs in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.errors import PsRuntimeError
from psruntime.faults import Place
from psruntime.graph.base.errors import LOST_SESSION, first_line
from psruntime.graph.base.types import Session
from psruntime.usercode import blame


class StepsOnly(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Calls `hook` for training steps only; `is_step(run_context)` returns whether a run is one.

    failure: the error to raise once the step is counted, since the hook failed in it, or in a later session.
    stop_requested: whether it asked for the end of this worker's training, and the updates up to then are still there.
    A stop of the session itself would keep the chief from writing the last checkpoint.
    global_step: returns the global step as this worker last saw it.  `hook.begin` is called once for all sessions.

    Raises:
        UsageError: the hook failed before it saw a step; a PassingError where that may pass.
    """

    def __init__(
        self,
        hook: tf1.train.SessionRunHook,
        is_step: Callable[[tf1.train.SessionRunContext], bool],
        global_step: Callable[[], int],
        log: Callable[..., None],
    ) -> None:
        self.stop_requested = False
        self.failure: PsRuntimeError | None = None
        self._has_session = False
        self._stopped_at = 0
        self._has_begun = False
        self._global_step = global_step
        self._hook = hook
        self._is_step = is_step
        self._log = log
        self._name = f"hook {type(hook).__name__}"

    def begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            with blame(self._name):
                self._hook.begin()

    def after_create_session(self, session: Session, coord: tf1.train.Coordinator) -> None:
        self.stop_requested = self.stop_requested and self._global_step() >= self._stopped_at
        try:
            with blame(self._name, LOST_SESSION, Place.HOOK if self._has_session else Place.BUILD):
                self._hook.after_create_session(session, coord)
        except PsRuntimeError as error:
            if not self._has_session:
                raise
            self.failure = error
        self._has_session = True

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs | None:
        return self._of_step(self._hook.before_run, run_context)

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        """Calls the hook.  The step is done and counted, so a session that is lost here must not make MonitoredSession
        repeat it."""
        try:
            self._of_step(lambda context: self._hook.after_run(context, run_values), run_context)
        except LOST_SESSION as error:
            self._log("hook_failed", hook=self._name, reason=first_line(error))

    def end(self, session: Session) -> None:
        """Ends the hook: the training is over, and saved; ps may be gone already."""
        try:
            with blame(self._name, LOST_SESSION, Place.HOOK):
                self._hook.end(session)
        except (*LOST_SESSION, PsRuntimeError) as error:
            self._log("hook_failed", hook=self._name, reason=first_line(error))

    def _of_step(self, call: Callable[..., Any], run_context: tf1.train.SessionRunContext) -> Any:
        if not self._is_step(run_context):
            return None
        own = tf1.train.SessionRunContext(run_context.original_args, run_context.session)
        try:
            with blame(self._name, LOST_SESSION, Place.HOOK):
                result = call(own)
        except PsRuntimeError as error:
            self.failure = self.failure or error
            return None
        if own.stop_requested and not self.stop_requested:
            self.stop_requested, self._stopped_at = True, self._global_step()
        return result
