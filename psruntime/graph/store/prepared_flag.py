"""What each ps says of the variables that it holds, and the fence of those who prepare them.

A prepared flag is 0 on a fresh ps, the marker of the job's plan on a prepared one, and its negative on one whose
preparation began: its counters are live, its variables may be anything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.members.membership import tag_of
from psruntime.core.members.view import listed
from psruntime.core.recovery.recovery import Holding
from psruntime.errors import JobFailedError, ModelDiffersError, ReplacedError
from psruntime.graph.base.devices import ps_device
from psruntime.graph.store.bucket_store import PsControl


class PreparedFlags:
    """The prepared flags of all ps, as worker `index` reads and writes them when it is the chief.

    Builds its operations in the current graph, on the current device.
    marker: stands for this job's variables, greater than 0.  held: the variables of each ps, without its PsControl.
    """

    def __init__(self, controls: Sequence[PsControl], marker: int, held: Sequence[Sequence[Any]], index: int) -> None:
        self._marker = marker
        self._flags = [c.prepared.read_value() for c in controls]
        self._admitted = [c.admitted.sparse_read(index) for c in controls]
        self._sizes = [
            c.bytes_held.assign(_size_bytes([*c.variables, *variables]), read_value=False)
            for c, variables in zip(controls, held, strict=True)
        ]
        self._mark = [c.prepared.assign(marker, read_value=False) for c in controls]
        self._unmark = [c.prepared.assign(-marker, read_value=False) for c in controls]

    def read(self, session: Any) -> list[Holding]:
        """What each ps holds.

        Raises:
            JobFailedError: a ps holds the variables of another plan.
        """
        known = {0: Holding.FRESH, -self._marker: Holding.BEGUN, self._marker: Holding.PREPARED}
        flags = [int(flag) for flag in session.run(self._flags)]
        for ps, flag in enumerate(flags):
            if flag not in known:
                raise JobFailedError(f"ps {ps} holds the variables of another plan; restart it to begin anew")
        return [known[flag] for flag in flags]

    def begin(self, session: Any, incarnation: int, every_ps: Collection[int]) -> None:
        """Marks these ps as being prepared: from here on their variables may be anything."""
        self.write(session, incarnation, [self._unmark[ps] for ps in every_ps])

    def finish(self, session: Any, incarnation: int, every_ps: Collection[int]) -> None:
        """Marks these ps as prepared: their variables are complete."""
        self.write(session, incarnation, [self._sizes[ps] for ps in every_ps])
        self.write(session, incarnation, [self._mark[ps] for ps in every_ps])

    def write(self, session: Any, incarnation: int, operations: list[Any], feed: Any = None) -> None:
        """Runs operations that write, if the ps still admit this incarnation.  Raises as `require_admitted`."""
        self.require_admitted(session, incarnation)
        session.run(operations, feed)

    def require_admitted(self, session: Any, incarnation: int) -> None:
        """Checks that every ps still admits this incarnation.

        A chief that was paused meanwhile must not write over what its successor prepared.

        Raises:
            ReplacedError: a ps no longer admits the incarnation.
        """
        for ps, admitted in enumerate(session.run(self._admitted)):
            if admitted != incarnation:
                tag = tag_of(incarnation)
                raise ReplacedError(f"ps {ps} does not admit incarnation {tag}: another chief may be at work")

    def require(self, session: Any) -> None:
        """Checks that every ps of the session is prepared: one may have been replaced a moment ago.

        Raises:
            UnavailableError: one is not.
            ModelDiffersError: one is, but for other variables than this worker's.
        """
        flags = [int(flag) for flag in session.run(self._flags)]
        strange = [ps for ps, flag in enumerate(flags) if abs(flag) not in (0, self._marker)]
        if strange:
            raise ModelDiffersError(
                f"ps {listed(strange)} holds other variables than this worker's; start it with the job's own script"
            )
        missing = [ps for ps, flag in enumerate(flags) if flag != self._marker]
        if missing:
            raise tf1.errors.UnavailableError(None, None, f"ps {listed(missing)} is not prepared")


def _size_bytes(variables: Sequence[Any]) -> int:
    """Bytes of all these variables; one of unknown shape or of strings counts nothing."""
    return sum((v.shape.num_elements() or 0) * v.dtype.base_dtype.size for v in variables)


class WriteFence:
    """Lets writes of worker `index` through while the ps admits its incarnation, which is fed to each ps."""

    def __init__(self, controls: Sequence[PsControl], index: int) -> None:
        self._admitted = []
        for ps, control in enumerate(controls):
            with tf1.device(ps_device(ps)):
                incarnation = tf1.placeholder(tf1.int64, [], name=f"writer_{ps}")
                self._admitted.append((control, incarnation))
        self._index = index

    def passed(self, ps: int, after: list[Any]) -> Any:
        """An operation on the ps that fails unless it is so, once `after` have run."""
        control, incarnation = self._admitted[ps]
        with tf1.device(ps_device(ps)), tf1.control_dependencies(after):
            admitted = control.admitted.sparse_read(self._index)
            return tf1.debugging.Assert(tf1.equal(admitted, incarnation), ["another chief may be at work"])

    def feed(self, incarnation: int) -> dict[Any, int]:
        """What a run with such operations is fed."""
        return {placeholder: incarnation for _, placeholder in self._admitted}
