"""`psruntime.Supervisor`: tf.train.Supervisor for a script that is a worker of a job."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.classic.arguments import LateWriter, StockArguments
from psruntime.classic.joining import ScriptPlace, counting_of, join_script, refusing
from psruntime.classic.placement import ps_of
from psruntime.classic.supervised_session import SupervisedSession
from psruntime.errors import UsageError

NAME = "psruntime.Supervisor"
SERVICE_S = 1.0  # between two looks at what is due: a summary, or a checkpoint
CHECK_S = 0.5  # how often a wait for the end looks whether the job takes steps
_KEYS = tf1.GraphKeys


class Supervisor:
    """A worker of a job, for scripts that use tf.train.Supervisor: its arguments, methods and attributes.

    Other than there, the coordinator chooses the chief, a lost session is replaced and a lost run repeated, and the
    chief also writes a checkpoint when all have stopped. The script leaves the job with the block of `managed_session`,
    or by `close` of a session of `prepare_or_wait_for_session`, or at its end.

    Args:
        graph: As in TensorFlow; it is finalized when the session is made.
        ready_op: As in TensorFlow.
        ready_for_local_init_op: As in TensorFlow.
        is_chief: Accepted, and without effect on who is the chief.
        init_op: As in TensorFlow, for the chief of the coordinator, as are `init_feed_dict` and `init_fn`.
        init_feed_dict: As in TensorFlow.
        local_init_op: As in TensorFlow.
        logdir: As in TensorFlow; each worker should have it, since each may become the chief.
        summary_op: As in TensorFlow.
        saver: As in TensorFlow.
        global_step: What counts the steps. By default the global step of the graph, or what minimize() counts. A
            checkpoint has its number in any case.
        save_summaries_secs: As in TensorFlow, in seconds.
        save_model_secs: As in TensorFlow, in seconds.
        recovery_wait_secs: Accepted and without effect: a worker waits for the others alone.
        stop_grace_secs: As in TensorFlow, in seconds.
        checkpoint_basename: As in TensorFlow.
        session_manager: None only.
        summary_writer: As in TensorFlow.
        init_fn: As in TensorFlow.
        local_init_run_options: Accepted and without effect.
        place: coordinator, index and the others by which `psruntime.MonitoredTrainingSession` finds the job.

    Raises:
        SystemExit: as `psruntime.MonitoredTrainingSession`, here and in `prepare_or_wait_for_session`.
    """

    USE_DEFAULT = 0

    def __init__(
        self,
        graph: Any = None,
        ready_op: Any = USE_DEFAULT,
        ready_for_local_init_op: Any = USE_DEFAULT,
        is_chief: bool = True,
        init_op: Any = USE_DEFAULT,
        init_feed_dict: Any = None,
        local_init_op: Any = USE_DEFAULT,
        logdir: str | None = None,
        summary_op: Any = USE_DEFAULT,
        saver: Any = USE_DEFAULT,
        global_step: Any = USE_DEFAULT,
        save_summaries_secs: float = 120,
        save_model_secs: float = 600,
        recovery_wait_secs: float = 30,  # noqa: ARG002
        stop_grace_secs: float = 120,
        checkpoint_basename: str = "model.ckpt",
        session_manager: Any = None,
        summary_writer: Any = USE_DEFAULT,
        init_fn: Any = None,
        local_init_run_options: Any = None,  # noqa: ARG002
        **place: Any,
    ) -> None:
        self._place = ScriptPlace(**place)
        self._graph = graph or tf1.get_default_graph()
        self._is_chief_by_script, self._logdir = is_chief, logdir or ""
        self._stop_grace_secs, self._basename, self._init_fn = stop_grace_secs, checkpoint_basename, init_fn
        with self._graph.as_default():
            given = None if _is_default(global_step) else global_step
            self._counting = counting_of(NAME, given)
            with refusing(NAME):
                if session_manager is not None:
                    raise UsageError("session_manager is not for a job, which makes the sessions itself: leave it out")
            self.global_step = self._counting.global_step if given is None else given
            self.init_op = _default(init_op, _KEYS.INIT_OP, tf1.global_variables_initializer)
            self.local_init_op = _default(local_init_op, _KEYS.LOCAL_INIT_OP, _initialise_local)
            self.ready_op = _default(ready_op, _KEYS.READY_OP, _uninitialised)
            self.ready_for_local_init_op = _default(
                ready_for_local_init_op, _KEYS.READY_FOR_LOCAL_INIT_OP, lambda: None
            )
            self.saver = _default(saver, _KEYS.SAVERS, lambda: tf1.train.Saver() if tf1.global_variables() else None)
            self.summary_op = _default(summary_op, _KEYS.SUMMARY_OP, tf1.summary.merge_all)
        if _is_default(summary_writer):
            summary_writer = LateWriter(self._logdir, tf1.summary.FileWriter) if self._logdir else None
        self.summary_writer = summary_writer
        self.init_feed_dict = init_feed_dict
        self.save_summaries_secs, self.save_model_secs = save_summaries_secs, save_model_secs
        self.save_path = os.path.join(self._logdir, checkpoint_basename) if self._logdir else None
        self.session_manager = None
        self.coord = tf1.train.Coordinator()
        self._serves = False
        self._session: SupervisedSession | None = None

    @property
    def is_chief(self) -> bool:
        """Whether this worker is the chief now; before it is a member, what the script says."""
        if self._session is None or self._session.is_closed:
            return self._is_chief_by_script
        return self._session.is_chief

    def prepare_or_wait_for_session(
        self,
        master: str = "",  # noqa: ARG002
        config: Any = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        start_standard_services: bool = True,
    ) -> SupervisedSession:
        """As tf.train.Supervisor.  The session is one for the whole of the job; later calls give the same one."""
        if self._session is not None:
            with refusing(NAME):
                if self._session.is_closed:
                    raise UsageError("this process has left the job: start it again to take part once more")
            return self._session
        self.coord.clear_stop()
        with self._graph.as_default():
            if wait_for_checkpoint:
                self._await_checkpoint(max_wait_secs)
            monitored = join_script(
                NAME, self._place, self._stock_arguments(config, max_wait_secs), self._counting, lambda: self._serves
            )
            self._session = SupervisedSession(monitored, self._counting)
        if start_standard_services:
            self.start_standard_services(self._session)
            self.start_queue_runners(self._session)
        return self._session

    @contextmanager
    def managed_session(
        self,
        master: str = "",
        config: Any = None,
        start_standard_services: bool = True,
        close_summary_writer: bool = True,
    ) -> Iterator[SupervisedSession]:
        """As tf.train.Supervisor.  Leaving the block waits for the other workers; an error in it leaves at once."""
        session = self.prepare_or_wait_for_session(master, config, start_standard_services=start_standard_services)
        try:
            try:
                yield session
            except Exception as error:  # noqa: BLE001 - `stop` raises it unless it is the end of the input
                self.request_stop(error)
            self.stop(close_summary_writer=close_summary_writer)
        except BaseException as error:
            self.coord.request_stop()
            session.fail(error)
            raise
        session.close()

    def start_standard_services(self, sess: Any) -> Any:
        """As tf.train.Supervisor: summaries, speed and checkpoints, on the worker that is the chief."""
        if not self._logdir:
            tf1.logging.warning("Standard services need a 'logdir' passed to the Supervisor")
            return None
        if self._serves:
            return []
        self._serves = True
        return [self.loop(SERVICE_S, sess.serve)]

    def start_queue_runners(self, sess: Any, queue_runners: Sequence[Any] | None = None) -> list[Any]:
        """As tf.train.Supervisor."""
        if queue_runners is None:
            queue_runners = self._graph.get_collection(_KEYS.QUEUE_RUNNERS)
        threads: list[Any] = []
        for runner in queue_runners:
            threads += runner.create_threads(sess, coord=self.coord, daemon=True, start=True)
        return threads

    def loop(self, timer_interval_secs: float | None, target: Any, args: Any = None, kwargs: Any = None) -> Any:
        """As tf.train.Supervisor."""
        looper = tf1.train.LooperThread(self.coord, timer_interval_secs, target=target, args=args, kwargs=kwargs)
        looper.start()
        return looper

    def stop(self, threads: Any = None, close_summary_writer: bool = True, ignore_live_threads: bool = False) -> None:
        """As tf.train.Supervisor: ends the services and threads, and not the session."""
        self.coord.request_stop()
        try:
            self.coord.join(
                threads, stop_grace_period_secs=self._stop_grace_secs, ignore_live_threads=ignore_live_threads
            )
        finally:
            writer = self.summary_writer
            if close_summary_writer and writer and (not isinstance(writer, LateWriter) or writer.is_open):
                writer.add_session_log(tf1.SessionLog(status=tf1.SessionLog.STOP))
                writer.close()

    def request_stop(self, ex: Any = None) -> None:
        """As tf.train.Supervisor."""
        self.coord.request_stop(ex)

    def should_stop(self) -> bool:
        """Whether anything asked to stop, or the job takes no further step."""
        if not self.coord.should_stop() and self._session is not None and self._session.should_stop():
            self.coord.request_stop()
        return bool(self.coord.should_stop())

    def wait_for_stop(self) -> None:
        """As tf.train.Supervisor; the end of the job is one."""
        while not self.should_stop():
            self.coord.wait_for_stop(CHECK_S)

    def stop_on_exception(self) -> Any:
        """As tf.train.Supervisor."""
        return self.coord.stop_on_exception()

    def summary_computed(self, sess: Any, summary: Any, global_step: Any = None) -> None:
        """As tf.train.Supervisor."""
        if not self.summary_writer:
            raise RuntimeError("Writing a summary requires a summary writer.")
        if global_step is None:
            global_step = int(sess.run(self._counting.global_step))
        self.summary_writer.add_summary(summary, global_step)

    PrepareSession, StartQueueRunners, StartStandardServices = (
        prepare_or_wait_for_session, start_queue_runners, start_standard_services,
    )  # fmt: skip
    Stop, RequestStop, Loop, ShouldStop = stop, request_stop, loop, should_stop
    StopOnException, WaitForStop, SummaryComputed = stop_on_exception, wait_for_stop, summary_computed

    def _stock_arguments(self, config: Any, max_wait_secs: float) -> StockArguments:
        ready_for_local = self.ready_for_local_init_op
        scaffold = tf1.train.Scaffold(
            init_op=tf1.no_op() if self.init_op is None else self.init_op,
            init_feed_dict=self.init_feed_dict,
            init_fn=None if self._init_fn is None else lambda _, session: self._init_fn(session),
            ready_op=tf1.constant([], tf1.string) if self.ready_op is None else self.ready_op,
            ready_for_local_init_op=_ready_on_ps() if ready_for_local is None else ready_for_local,
            local_init_op=tf1.no_op() if self.local_init_op is None else self.local_init_op,
            saver=self.saver,
        )
        return StockArguments(
            self._logdir if self.saver else "", "", scaffold, (), tuple(self._services()), None, None, None, None,
            None, True, config, self._stop_grace_secs, max_wait_secs,
        )  # fmt: skip

    def _services(self) -> Iterator[Any]:
        """Hooks of the chief, which act in the runs of the services."""
        hooks, writer = tf1.train, self.summary_writer
        if self._logdir and writer and self.save_summaries_secs:
            yield hooks.StepCounterHook(
                every_n_steps=None, every_n_secs=self.save_summaries_secs, summary_writer=writer
            )
            if self.summary_op is not None:
                yield hooks.SummarySaverHook(
                    save_secs=self.save_summaries_secs, summary_writer=writer, summary_op=self.summary_op
                )
        if self._logdir and self.saver and self.save_model_secs:
            yield hooks.CheckpointSaverHook(
                self._logdir, save_secs=self.save_model_secs, saver=self.saver, checkpoint_basename=self._basename
            )

    def _await_checkpoint(self, within_s: float) -> None:
        ends_s = time.monotonic() + within_s
        while self._logdir and tf1.train.latest_checkpoint(self._logdir) is None:
            if time.monotonic() > ends_s:
                sys.stderr.write(f"{NAME}: {self._logdir} has had no checkpoint for {within_s:g} s (max_wait_secs)\n")
                raise SystemExit(1)
            time.sleep(CHECK_S)


def _is_default(given: Any) -> bool:
    return isinstance(given, int) and given == Supervisor.USE_DEFAULT


def _default(given: Any, key: str, make: Any) -> Any:
    """What is given, None included; by default the first of a collection of the graph, or what is made."""
    if not _is_default(given):
        return given
    found = tf1.get_collection(key)
    if not found and (made := make()) is not None:
        tf1.add_to_collection(key, made)
        found = [made]
    return found[0] if found else None


def _ready_on_ps() -> Any:
    """What the chief has to initialise or restore; a Scaffold would look at copies on the worker, too."""
    return _uninitialised([v for v in tf1.global_variables() if ps_of(v) is not None])


def _uninitialised(variables: Any = None) -> Any:
    """Names, string [n]; by an operation of its own, without which TensorFlow complains where nothing fetches them."""
    return tf1.identity(tf1.report_uninitialized_variables(variables))


def _initialise_local() -> Any:
    return tf1.group(tf1.local_variables_initializer(), tf1.tables_initializer())
