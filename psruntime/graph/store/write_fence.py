"""A fence for what takes long to write: each ps looks, before it writes, whether it still admits who writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.devices import ps_device
from psruntime.graph.store.bucket_store import PsControl


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
