"""The evaluation at the end of a job: nothing but the exit code depends on its failure, and it has a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import cached_property
from typing import Any

from psruntime.errors import JobOverError, PsRuntimeError, ReplacedError, StopRequested, UserCodeError
from psruntime.graph.base.errors import LOST_SESSION
from psruntime.graph.model.evaluate import PulledEvaluation
from psruntime.graph.model.model_metrics import Measuring
from psruntime.observe.log import first_line_of

LOGGED_EVERY_S = 10.0


class FinalEvaluation:
    """Measures the final variables on held-out data.

    make: builds its graph, when it is first needed.  limit_s: what it may take in all.  show: called with how far it
    is, after each batch.

    failure: why the last one failed; empty if it did not.
    """

    def __init__(
        self,
        make: Callable[[], PulledEvaluation],
        limit_s: float,
        show: Callable[[str], None],
        log: Callable[..., None],
    ) -> None:
        self.failure = ""
        self._make, self._limit_s, self._show, self._log = make, limit_s, show, log
        self._logged_s = 0.0

    @cached_property
    def built(self) -> PulledEvaluation:
        """Raises UsageError if the model or the input cannot be built."""
        return self._make()

    def measure(self, open_session: Callable[[Any], Any], global_step: int) -> dict[str, float] | None:
        """The metrics by name; None if it failed, which is logged.

        open_session: opens a session of a graph on the current view.

        Raises:
            OpError, ReplacedError, StopRequested, JobOverError: a ps or the membership is lost, or the job is over.
        """
        self.failure = ""
        try:
            with closing(open_session(self.built.graph)) as session:
                return self.built.measure(session, self._on_batch)
        except (*LOST_SESSION, ReplacedError, StopRequested, JobOverError):
            raise
        except Exception as error:  # noqa: BLE001 - the training is complete and saved: this is not its failure
            self.failure = str(error) if isinstance(error, PsRuntimeError) else first_line_of(error)
            self._log("evaluation_failed", global_step=global_step, reason=self.failure)
            return None

    def _on_batch(self, measured: Measuring) -> None:
        """Raises UserCodeError if the limit is reached."""
        if measured.seconds >= self._limit_s:
            raise UserCodeError(
                f"it did not end within {self._limit_s:g} s (5 times --drain-timeout): {measured}; do the data end?"
            )
        doing, now_s = f"evaluates: {measured} of at most {self._limit_s:g} s", time.monotonic()
        self._show(doing)
        if measured.seconds >= LOGGED_EVERY_S and now_s - self._logged_s >= LOGGED_EVERY_S:
            self._logged_s = now_s
            self._log("evaluating", reason=doing)
