"""Optimizers for embedding tables, made like those of `tf.compat.v1.train`, which they also work beside.

An update with a sparse gradient reads and writes the rows that the gradient names, and no other: its cost is that of
these rows, however many the table has.  They work in plain TensorFlow too.

    from psruntime import ModelSpec, optimizers

    ModelSpec(loss, optimizer={"deep/*": optimizers.LazyAdam, "*": tf1.train.AdamOptimizer}, learning_rate=1e-3)

Momentum and RMSProp need no form of their own: those of tf.train move the named rows and slots alone.

Knows TensorFlow alone.
"""

from psruntime.optimizers.group_ftrl import GroupFtrl
from psruntime.optimizers.lazy_adam import LazyAdam
from psruntime.optimizers.rowwise_adagrad import RowwiseAdagrad

__all__ = ["GroupFtrl", "LazyAdam", "RowwiseAdagrad"]
