"""A batch that the user's code cannot process: it ends the job, or it is skipped and counted."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError, UserCodeError
from psruntime.graph.base.errors import user_error
from psruntime.graph.base.types import Graph

LIMIT = 10  # batches in a row that may fail; where all do, the batch is not the cause
REASONS = 10  # different ones that get a line each; some reasons have a number of their own for every record


class DataErrors:
    """Counts the bad batches of one source, the input or the steps; each has one thread.

    skip: whether a bad batch is skipped.  on_skip: called for each.

    A batch has a line in the log if its reason is new, or if the count of those before it has doubled: a damaged record
    of a small file is read over and over.  No line names the file, which TensorFlow's errors about records do not.
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
        self._skipped = 0
        self._failed_steps = 0
        self._reasons: set[str] = set()

    def succeeded(self) -> None:
        """A batch was processed."""
        self._in_a_row = 0

    def skip(self, error: UserCodeError | UsageError) -> None:
        """Skips and counts a batch.

        Raises:
            UserCodeError, UsageError: the setting forbids it, or too many in a row were skipped.
        """
        if not self._skip:
            raise error
        self._in_a_row += 1
        self._skipped += 1
        if self._is_new(str(error)) or is_power_of_two(self._skipped):
            self._log("batch_skipped", count=self._skipped, in_a_row=self._in_a_row, reason=error)
        self._on_skip()
        if self._in_a_row >= LIMIT:  # the input may be asked again before the job has ended
            last = type(error)(f"{LIMIT} batches in a row were passed over; the last: {error}")
            last.detail = error.detail
            raise last

    def step_failed(self, error: tf1.errors.OpError, graph: Graph, tries: int) -> bool:
        """Whether a step that has failed `tries` times continues with another batch; else it is repeated as it was.

        Raises:
            UserCodeError: the job ends.
            OpError: this was no error of the user's.
        """
        found = user_error(error, graph)
        if not isinstance(found, UserCodeError):
            raise error
        if tries == 1:
            self._failed_steps += 1
            if is_power_of_two(self._failed_steps):
                self._log("step_failed", count=self._failed_steps, reason=found, then="the step is tried once more")
            return False
        self.skip(found)
        return True

    def _is_new(self, reason: str) -> bool:
        if reason in self._reasons or len(self._reasons) >= REASONS:
            return False
        self._reasons.add(reason)
        return True


def is_power_of_two(count: int) -> bool:
    return count & (count - 1) == 0
