"""The state of the variables on each ps.

A prepared flag is 0 on a fresh ps, the marker of the job's plan on a prepared one, and its negative on one whose
preparation began: its counters are live, its variables may be anything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import tensorflow.compat.v1 as tf1

from psruntime.core.members.view import listed
from psruntime.core.recovery.recovery import Contents
from psruntime.errors import JobFailedError, ModelDiffersError
from psruntime.graph.base.devices import ps_device
from psruntime.graph.base.types import Session, Variable
from psruntime.graph.store.bucket_store import PsControl
from psruntime.graph.store.write_fence import WriteFence


class PreparedFlags:
    """The prepared flags of all ps, as a worker reads them, and writes them behind its fence when it is the chief.

    Builds its operations in the current graph, on the current device.
    marker: of this job's variables, greater than 0.  of_ps: the variables of each ps, without its PsControl.
    flags, sizes: of each ps, a tensor that `require` reads and an operation that `measure` runs.
    """

    def __init__(
        self, controls: Sequence[PsControl], marker: int, of_ps: Sequence[Sequence[Variable]], fence: WriteFence
    ) -> None:
        self._marker = marker
        self._fence = fence
        self.flags = [c.prepared.read_value() for c in controls]
        self.sizes, self._mark, self._unmark = [], [], []
        for ps, (control, variables) in enumerate(zip(controls, of_ps, strict=True)):
            with tf1.device(ps_device(ps)):
                size_bytes = _size_bytes([*control.variables, *variables])
                self.sizes.append(control.bytes_held.assign(size_bytes, read_value=False))
                self._mark.append(control.prepared.assign(marker, read_value=False))
                self._unmark.append(control.prepared.assign(-marker, read_value=False))
            for write in (self.sizes[ps], self._mark[ps], self._unmark[ps]):
                fence.guard(ps, [write])

    def read(self, session: Session) -> list[Contents]:
        """The contents of each ps.

        Raises:
            JobFailedError: a ps has the variables of another plan.
        """
        known = {0: Contents.FRESH, -self._marker: Contents.BEGUN, self._marker: Contents.PREPARED}
        flags = [int(flag) for flag in session.run(self.flags)]
        for ps, flag in enumerate(flags):
            if flag not in known:
                raise JobFailedError(f"ps {ps} has the variables of another plan; restart it to clear them")
        return [known[flag] for flag in flags]

    def begin(self, session: Session, incarnation: int, every_ps: Collection[int]) -> None:
        """Marks these ps as being prepared: from here on their variables may be anything.

        Raises:
            ReplacedError: a ps no longer admits this incarnation, so there is another chief.
        """
        self._fence.run(session, incarnation, [self._unmark[ps] for ps in every_ps])

    def finish(self, session: Session, incarnation: int, every_ps: Collection[int]) -> None:
        """Marks these ps as prepared: their variables are complete.  Raises as `begin`."""
        self.measure(session, incarnation, every_ps)
        self._fence.run(session, incarnation, [self._mark[ps] for ps in every_ps])

    def measure(self, session: Session, incarnation: int, every_ps: Collection[int]) -> None:
        """Writes the size of the variables on these ps, in bytes.  Raises as `begin`."""
        self._fence.run(session, incarnation, [self.sizes[ps] for ps in every_ps])

    def require(self, session: Session) -> None:
        """Checks that every ps of the session is prepared: one may have been replaced a moment ago.

        Raises:
            UnavailableError: one is not.
            ModelDiffersError: one is, but for other variables than this worker's.
        """
        flags = [int(flag) for flag in session.run(self.flags)]
        strange = [ps for ps, flag in enumerate(flags) if abs(flag) not in (0, self._marker)]
        if strange:
            raise ModelDiffersError(
                f"ps {listed(strange)} has other variables than this worker's; start it with the job's own script"
            )
        missing = [ps for ps, flag in enumerate(flags) if flag != self._marker]
        if missing:
            raise tf1.errors.UnavailableError(None, None, f"ps {listed(missing)} is not prepared")


def _size_bytes(variables: Sequence[Variable]) -> int:
    """Bytes of all these variables; one of unknown shape or of strings counts nothing."""
    return sum((v.shape.num_elements() or 0) * v.dtype.base_dtype.size for v in variables)
