"""Which control flow tf1.cond and tf1.while_loop make: a switch of the whole process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow.compat.v1 as tf1


@contextmanager
def control_flow(v2: bool) -> Iterator[None]:
    """Control flow of version 2 (functions) or 1 (Switch and Merge); afterwards what it was before."""
    before = tf1.control_flow_v2_enabled()
    _switch(v2)
    try:
        yield
    finally:
        _switch(before)


def _switch(v2: bool) -> None:
    (tf1.enable_control_flow_v2 if v2 else tf1.disable_control_flow_v2)()
