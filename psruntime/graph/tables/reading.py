"""Reads on a ps for use on a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.types import Tensor
from psruntime.graph.store.wire import AS_IS, Wire, unpacked


def transferred(read: Callable[[], Tensor], ps: str, worker: str, wire: Wire) -> Tensor:
    """The result of `read()` on device `ps`, sent to device `worker`; it arrives in host memory, see `pulled_whole`."""
    with uncolocated(), tf1.get_default_graph().gradient_override_map({"Cast": AS_IS}):
        with tf1.device(ps):
            found = read()
            packed = wire.packed(found)
        with tf1.device(worker), tf1.device("/device:CPU:0"):
            packed = tf1.identity(packed)
        with tf1.device(worker):
            return tf1.identity(unpacked(packed, found.dtype))


def uncolocated() -> Any:
    """A scope in which operations are on their own device, without the current colocation."""
    return tf1.get_default_graph().colocate_with(None, ignore_existing=True)
