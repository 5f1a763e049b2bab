"""Which optimizers move rows that a sparse gradient does not name: what the log says of them is what they do."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime import optimizers
from psruntime.core.plan.buckets import Bucket, Piece
from psruntime.graph.buckets.optimizers import KNOWN, BucketOptimizer, Rule
from tests.graph.step.test_against_tensorflow import OPTIMIZERS

RMS = partial(tf1.train.RMSPropOptimizer, momentum=0.9)
MORE = {
    "rmsprop with momentum": RMS,
    "rmsprop, centred": partial(RMS, centered=True),
    "adadelta": tf1.train.AdadeltaOptimizer,
    "proximal sgd": tf1.train.ProximalGradientDescentOptimizer,
    "proximal adagrad": tf1.train.ProximalAdagradOptimizer,
    "lazy adam": optimizers.LazyAdam,
    "rowwise adagrad": optimizers.RowwiseAdagrad,
    "group ftrl": optimizers.GroupFtrl,
}
EVERY = {**OPTIMIZERS, **MORE}
DENSE = {"adam"}


def test_every_optimizer_that_is_known_is_here() -> None:
    assert {type(make(0.1)) for make in EVERY.values()} == set(KNOWN)


@pytest.mark.parametrize("name", EVERY)
def test_only_adam_moves_rows_that_have_no_gradient(name: str) -> None:
    with tf1.Graph().as_default() as graph:
        indices = tf1.placeholder(tf1.int64, [None])
        master = tf1.get_variable("table", initializer=np.ones([6, 4], "float32"), use_resource=True)
        bucket = Bucket("table", 0, (Piece("table", 0, 24),), "float32", (6, 4), is_table=True, group=1)
        optimizer = BucketOptimizer([Rule("*", EVERY[name], 0.1)], bucket, [tf1.constant(0.1)])
        gradient = tf1.fill([tf1.size(indices), 4], 2.0)
        update = optimizer.apply(tf1.IndexedSlices(gradient, indices), master)
        values = [master, *(v for v in optimizer.variables if optimizer.is_slot(v, master))]
        init = tf1.group(*[v.initializer for v in [master, *optimizer.variables]])
        for operation in graph.get_operations():
            operation._set_device("")
    with tf1.Session(graph=graph) as session:
        session.run(init)
        session.run(update, {indices: [1, 2]})
        before = session.run(values)
        session.run(update, {indices: [2, 3]})
        after = session.run(values)
    moved = [np.flatnonzero((b != a).reshape(6, -1).any(axis=1)).tolist() for b, a in zip(before, after, strict=True)]
    assert moved == [[1, 2, 3] if name in DENSE else [2, 3]] * len(values)
    assert optimizer.passes_over_tables == (name in DENSE)
    if name in DENSE:
        assert optimizer.bytes_of_all(master) == 3 * 24 * 4
