"""The evaluation at the end of a job: nothing but the exit code depends on its failure, and it has a limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from psruntime.errors import JobOverError, PsRuntimeError, ReplacedError, StopRequested
from psruntime.graph.base.errors import LOST_SESSION
from psruntime.graph.base.types import Graph, Session
from psruntime.graph.model.evaluate import PulledEvaluation
from psruntime.graph.model.model_metrics import LOGGED_EVERY_S, Measuring, require_time
from psruntime.observe.log import first_line_of

SHOWN_EVERY_S = 1.0  # while a batch takes long


class FinalEvaluation:
    """Measures the final variables on held-out data.

    evaluation: gives what measures; its graph may be built by the first call.  limit_s: what it may take in all.
    show: called with how far it is, after each batch.  wait: the same while a batch takes long, which is no progress:
    the coordinator may give the end of the job to another worker.  The last one has until limit_s.

    failure: why the last one failed; empty if it did not.  is_stuck: whether one was left behind in a batch.
    """

    def __init__(
        self,
        evaluation: Callable[[], PulledEvaluation],
        limit_s: float,
        show: Callable[[str], None],
        wait: Callable[[str], None],
        log: Callable[..., None],
    ) -> None:
        self.failure = ""
        self.is_stuck = False
        self._evaluation, self._limit_s, self._show, self._wait, self._log = evaluation, limit_s, show, wait, log
        self._logged_s = 0.0
        self._logging = threading.Lock()  # by the thread that measures and by the one that waits

    def measure(self, open_session: Callable[[Graph], Session], global_step: int) -> dict[str, float] | None:
        """The metrics by name; None if it failed, which is logged.

        open_session: opens a session of a graph on the current view.

        Raises:
            OpError, ReplacedError, StopRequested, JobOverError: a ps or the membership is lost, or the job is over.
        """
        self.failure, self.is_stuck = "", False
        try:
            session = open_session(self._evaluation().graph)
            try:
                return self._measured(session)
            finally:
                if not self.is_stuck:  # else TensorFlow waits for what runs in it
                    session.close()
        except (*LOST_SESSION, ReplacedError, StopRequested, JobOverError):
            raise
        except Exception as error:  # noqa: BLE001 - the training is complete and saved: this is not its failure
            self.failure = str(error) if isinstance(error, PsRuntimeError) else first_line_of(error)
            self._log("evaluation_failed", global_step=global_step, reason=self.failure)
            return None

    def _measured(self, session: Session) -> dict[str, float]:
        """Measures in a thread of its own: what a batch waits for may never come, and nothing interrupts it."""
        so_far, began_s = [Measuring(0, 0, 0.0)], time.monotonic()
        outcome: Future[dict[str, float]] = Future()

        def on_batch(measured: Measuring) -> None:
            so_far[0] = measured
            require_time(measured, measured.seconds, self._limit_s)
            self._show(self._doing(measured))
            self._log_at_times(measured)

        def run() -> None:
            try:
                outcome.set_result(self._evaluation().measure(session, on_batch))
            except BaseException as error:  # noqa: BLE001 - it is raised again where it is waited for
                outcome.set_exception(error)

        thread = threading.Thread(target=run, name="evaluation", daemon=True)
        thread.start()
        thread.join(SHOWN_EVERY_S)
        while thread.is_alive():
            measured = so_far[0]._replace(seconds=time.monotonic() - began_s)
            self.is_stuck = measured.seconds >= self._limit_s + SHOWN_EVERY_S  # after `on_batch` could have ended it
            if self.is_stuck:
                require_time(measured, measured.seconds, self._limit_s)
            self._wait(self._doing(measured))
            self._log_at_times(measured)
            thread.join(SHOWN_EVERY_S)
        return outcome.result()

    def _doing(self, measured: Measuring) -> str:
        return f"evaluates: {measured} of at most {self._limit_s:g} s"

    def _log_at_times(self, measured: Measuring) -> None:
        with self._logging:
            now_s = time.monotonic()
            if measured.seconds < LOGGED_EVERY_S or now_s - self._logged_s < LOGGED_EVERY_S:
                return
            self._logged_s = now_s
        self._log("evaluating", reason=self._doing(measured))
