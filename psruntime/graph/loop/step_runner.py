"""A training step on the newest session, with the hooks around it; a hook of the model sees these steps alone.

The runner does what MonitoredSession.run does, at less cost: MonitoredSession takes the fetches of every run apart
anew.  A step from which no hook wants anything goes through a callable that is made once for each session.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf1

from psruntime.errors import PsRuntimeError, UsageError
from psruntime.faults import Place, blame, first_line
from psruntime.graph.base.errors import LOST_SESSION
from psruntime.graph.base.types import Feed, Proto, Session
from psruntime.graph.session.save_hooks import CheckpointHook
from psruntime.graph.session.session import ViewHook
from psruntime.graph.step.train_graph import TrainGraph
from psruntime.observe.meter import StepTimes, in_order


class Ran(NamedTuple):
    """What the step fetched, and what each hook asked for; when the run began and ended, in s since 1970."""

    fetched: dict[str, Any]
    asked: Mapping[Any, Any]
    options: Proto
    metadata: Proto
    began_s: float
    ended_s: float

    def times(self, wait: str, waits_s: float, draws_s: float) -> StepTimes:
        """The marks of the step, which waited from `waits_s` on and drew a batch from `draws_s` on; see StepTimes."""
        marks = self.fetched["marks"]
        return in_order(
            wait, waits_s, draws_s, self.began_s, float(marks["pulled"]), float(marks["computed"]), self.ended_s
        )


class _Calls(NamedTuple):
    """Calls in one session: of a step, and of each run of a round by its name."""

    session: Session
    step: Callable[..., dict[str, Any]]
    round_calls: dict[str, Callable[..., Any]]


class Started(NamedTuple):
    """A step whose hooks were called.  run: runs it, in any thread, while the session is open."""

    context: Any
    run: Callable[[], Ran]


class StepRunner(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Runs steps, with `hooks` around them, the view's first.  It is a hook of the session itself, to know it."""

    def __init__(self, graph: TrainGraph, view_hook: ViewHook, hooks: Sequence[tf1.train.SessionRunHook]) -> None:
        self._step = graph.step
        self._rounds = graph.rounds
        self._fed = graph.fed
        self._view_hook = view_hook
        self._hooks = [view_hook, *hooks]
        self._pausing = [hook for hook in hooks if isinstance(hook, CheckpointHook)]
        self._newest: _Calls | None = None

    @property
    def global_step(self) -> int:
        """As this worker last saw it."""
        return self._view_hook.global_step

    def after_create_session(self, session: Session, coord: tf1.train.Coordinator) -> None:  # noqa: ARG002
        rounds = self._rounds.runs if self._rounds else {}
        round_calls = {name: session.calling(*run) for name, run in rounds.items()}
        self._newest = _Calls(session, session.calling(self._step, self._fed), round_calls)

    @property
    def session(self) -> Session:
        """The newest, in which no hook is called."""
        return self._calls.session

    @property
    def _calls(self) -> _Calls:
        assert self._newest is not None, "no session was created yet"
        return self._newest

    def start(self, feed: Feed) -> Started:
        """Calls the hooks before a step.

        feed: arrays, for the batch and the headers.

        Raises:
            AbortedError: the view was replaced.
        """
        context = tf1.train.SessionRunContext(tf1.train.SessionRunArgs(self._step, feed), self.session)
        requests = {hook: request for hook in self._hooks if (request := hook.before_run(context)) is not None}
        if requests:
            return Started(context, _asking(self.session, self._step, feed, requests))
        call, values = self._calls.step, [feed[tensor] for tensor in self._fed]

        def run() -> Ran:
            began_s = time.time()
            return Ran(call(*values), {}, None, None, began_s, time.time())

        return Started(context, run)

    def on_pause(self, global_step: int = 0) -> None:
        """No step comes for a while, in the session that is open.  global_step: that is known for certain."""
        self._view_hook.raise_global_step(global_step)
        for hook in self._pausing:
            hook.on_pause(self.session)

    def round_run(self, name: str) -> Callable[..., Any]:
        """A run of a round without a batch: `contribute` and `close`, to be called with the header, `squares`, or
        `close_local`, with the header and the global step of its end.

        Raises:
            AbortedError: the view was replaced.
        """
        self._view_hook.before_run(None)
        return self._calls.round_calls[name]

    def finish(self, started: Started, ran: Ran) -> dict[str, Any]:
        """Calls the hooks after a step; returns what it fetched.

        One that ran in a session that was lost meanwhile may have been undone since, with all that came after it: then
        the global step is the one of the new session.
        """
        fetched, context = ran.fetched, started.context
        if context.session is not self.session:
            fetched = {**fetched, "global_step": min(int(fetched["global_step"]), self._view_hook.global_step)}
            context = tf1.train.SessionRunContext(context.original_args, self.session)
        self._view_hook.saw(int(fetched["global_step"]))
        options = ran.options or tf1.RunOptions()
        metadata = ran.metadata or tf1.RunMetadata()
        for hook in self._hooks:
            hook.after_run(context, tf1.train.SessionRunValues(ran.asked.get(hook), options, metadata))
        return fetched


def _asking(session: Session, step: dict[str, Any], feed: Feed, requests: dict[Any, Any]) -> Callable[[], Ran]:
    options, metadata = tf1.RunOptions(), tf1.RunMetadata()
    feeds = dict(feed)
    for request in requests.values():
        for tensor, value in (request.feed_dict or {}).items():
            if tensor in feeds:
                raise UsageError(f"a hook feeds {tensor.name}, which is fed already")
            feeds[tensor] = value
        if request.options:
            options.MergeFrom(request.options)
    fetches = {hook: request.fetches for hook, request in requests.items() if request.fetches is not None}

    def run() -> Ran:
        began_s = time.time()
        fetched, asked = session.run((step, fetches), feeds, options=options, run_metadata=metadata)
        return Ran(fetched, asked, options, metadata, began_s, time.time())

    return run


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
