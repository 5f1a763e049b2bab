"""What becomes of a batch that the user's code cannot process: it ends the job, or it is passed over and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.errors import UserCodeError
from psruntime.graph.base.failed_operation import user_error

LIMIT = 10  # batches in a row that may fail; where all do it is not the batch


class DataErrors:
    """Of one source of errors, the input or the steps; each has one thread.

    skip: whether a bad batch is passed over.  on_skip: called for each.
    """

    def __init__(
        self,
        skip: bool = False,
        log: Callable[..., None] = lambda *_, **__: None,
        on_skip: Callable[[], None] = lambda: None,
    ) -> None:
        self._skip = skip
        self._log = log
        self._on_skip = on_skip
        self._in_a_row = 0

    def worked(self) -> None:
        """A batch was processed."""
        self._in_a_row = 0

    def pass_over(self, error: UserCodeError) -> None:
        """A batch is given up.

        Raises:
            UserCodeError: it must not be, or too many in a row were.
        """
        if not self._skip:
            raise error
        self._in_a_row += 1
        self._log("batch_skipped", in_a_row=self._in_a_row, reason=error, traceback=error.detail)
        self._on_skip()
        if self._in_a_row >= LIMIT:  # the input may be asked again before the job has ended
            last = type(error)(f"{LIMIT} batches in a row were passed over; the last: {error}")
            last.detail = error.detail
            raise last

    def step_failed(self, error: tf1.errors.OpError, graph: Any, tries: int) -> bool:
        """Whether a step that has failed so many times goes on with another batch; else it is tried again as it was.

        Raises:
            UserCodeError: the job ends.
            OpError: this was no error of the user's.
        """
        found = user_error(error, graph)
        if found is None:
            raise error
        if tries == 1:
            self._log("step_failed", reason=found, then="the step is tried once more")
            return False
        self.pass_over(found)
        return True
