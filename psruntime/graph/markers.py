"""Markers: what each ps says of the variables that it holds, and the fence of those who prepare them.

A marker is 0 on a fresh ps, the job's own on a prepared one, and its negative on one whose preparation began:
its books are live, its variables may be anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.view import listed
from psruntime.errors import JobFailedError, ModelDiffersError, ReplacedError
from psruntime.graph.store import PsControl


class Markers:
    """The operations of worker `index` as the chief, built in the graph and on the device of now.

    marker: of this job's variables, greater than 0.  bytes_held: of all variables of each ps.
    """

    def __init__(self, controls: Sequence[PsControl], marker: int, bytes_held: Sequence[int], index: int) -> None:
        self._marker = marker
        self._markers = [c.prepared.read_value() for c in controls]
        self._admitted = [c.admitted.sparse_read(index) for c in controls]
        self._sizes = [
            c.bytes_held.assign(size, read_value=False) for c, size in zip(controls, bytes_held, strict=True)
        ]
        self._mark = [c.prepared.assign(marker, read_value=False) for c in controls]
        self._unmark = [c.prepared.assign(-marker, read_value=False) for c in controls]

    def read(self, session: Any) -> list[int]:
        """The marker of each ps.

        Raises:
            JobFailedError: one is of other variables.
        """
        markers = [int(marker) for marker in session.run(self._markers)]
        for ps, marker in enumerate(markers):
            if abs(marker) not in (0, self._marker):
                raise JobFailedError(f"ps {ps} holds the variables of another plan; restart it to begin anew")
        return markers

    def obstacle(self, markers: Sequence[int]) -> str:
        """Why what the ps hold cannot be adopted; empty if all of them are prepared."""
        if not any(markers):
            return "no ps holds anything"
        return "" if set(markers) == {self._marker} else "not every ps holds its variables"

    def begin(self, session: Any, incarnation: int) -> None:
        """From here on the variables may be anything."""
        self.write(session, incarnation, self._unmark)

    def finish(self, session: Any, incarnation: int) -> None:
        """The variables are complete."""
        self.write(session, incarnation, self._sizes)
        self.write(session, incarnation, self._mark)

    def write(self, session: Any, incarnation: int, operations: list[Any], feed: Any = None) -> None:
        """Runs operations that write, if this incarnation may still do so.  Raises as `require_admitted`."""
        self.require_admitted(session, incarnation)
        session.run(operations, feed)

    def require_admitted(self, session: Any, incarnation: int) -> None:
        """A chief that was paused meanwhile must not write over what its successor prepared.

        Raises:
            ReplacedError: a ps no longer admits the incarnation.
        """
        for ps, admitted in enumerate(session.run(self._admitted)):
            if admitted != incarnation:
                raise ReplacedError(f"ps {ps} does not admit incarnation {incarnation:x}: another chief may be at work")

    def require(self, session: Any) -> None:
        """Makes sure that every ps of the session is prepared: one may have been replaced a moment ago.

        Raises:
            UnavailableError: one is not.
            ModelDiffersError: one is, but for other variables than this worker's.
        """
        markers = [int(marker) for marker in session.run(self._markers)]
        strange = [ps for ps, marker in enumerate(markers) if abs(marker) not in (0, self._marker)]
        if strange:
            raise ModelDiffersError(
                f"ps {listed(strange)} holds other variables than this worker's; start it with the job's own script"
            )
        missing = [ps for ps, marker in enumerate(markers) if marker != self._marker]
        if missing:
            raise tf1.errors.UnavailableError(None, None, f"ps {listed(missing)} is not prepared")
