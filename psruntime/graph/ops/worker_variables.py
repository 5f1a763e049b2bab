"""Variables on a worker's own server, which it keeps from step to step."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.types import DType, Variable

LASTING = "psruntime/lasting"  # the collection of those that the sessions of a worker share


def worker_variable(name: str, shape: Sequence[int], dtype: DType, value: int = 0, lasting: bool = False) -> Variable:
    """A variable on the current device, with this value in every new session.

    lasting: it has this value when the variables of the job were initialised or restored, and keeps its own in every
    other new session, in those of another graph of the worker, too (WorkerCopies.take).
    """
    with tf1.variable_scope(tf1.VariableScope(reuse=False), auxiliary_name_scope=False):
        return tf1.get_variable(
            f"psruntime/{name}",
            shape,
            dtype,
            initializer=tf1.constant_initializer(value),
            trainable=False,
            use_resource=True,
            collections=[LASTING if lasting else tf1.GraphKeys.LOCAL_VARIABLES],
        )
