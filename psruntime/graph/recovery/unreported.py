"""Whether variables were restored without a report to the coordinator.

The chief may be lost between the end of a preparation and its report.  Then the next one finds prepared variables, and
must not adopt them as those whose position the coordinator has.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.devices import ps_device
from psruntime.graph.base.types import Session
from psruntime.graph.store.bucket_store import ps_variable
from psruntime.graph.store.write_fence import WriteFence


class Unreported:
    """A number on ps 0: of the view in which variables are, or were, restored; 0 once that is reported.

    Builds its operations in the current graph.  variable: initialised by the chief that prepares a fresh ps 0.
    """

    def __init__(self, fence: WriteFence) -> None:
        self._fence = fence
        with tf1.device(ps_device(0)):
            self.variable = ps_variable("unreported_view", [])
            self._view = tf1.placeholder(tf1.int64, [], name="unreported_view")
            self._begin = self.variable.assign(self._view, read_value=False)
            self._read = self.variable.read_value()
            others = tf1.where(tf1.equal(self._read, self._view), tf1.zeros_like(self._read), self._read)
            self._end = self.variable.assign(others, read_value=False)
        fence.guard(0, [self._begin])

    def begin(self, session: Session, incarnation: int, view: int) -> None:
        """To be called before the first variable is restored.  Raises ReplacedError if there is another chief."""
        self._fence.run(session, incarnation, [self._begin], {self._view: view})

    def is_left(self, session: Session) -> bool:
        """Whether a restore began in some view, and was not reported."""
        return int(session.run(self._read)) != 0

    def end(self, session: Session, view: int) -> None:
        """Clears the number: the coordinator reports the view as prepared.  Does nothing if it is another view's."""
        session.run(self._end, {self._view: view})
