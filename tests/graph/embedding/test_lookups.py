"""Lookups: every way to read a table gives its rows, and the gradient that a plain variable has.

Like tests/graph/model/test_capture.py an alarm for the private attributes that capture takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.plan.plan import make_plan
from psruntime.graph.buckets.bucket_store import BucketSection
from psruntime.graph.embedding.table_reader import TableRead
from psruntime.graph.model.capture import substitute
from psruntime.graph.model.variable_reads import PulledRead
from tests.support.control_flow import control_flow
from tests.support.local_cluster import LocalCluster

pytestmark = pytest.mark.optimised

LOOKUPS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "gather": (lambda v: tf1.gather(v, [[2, 0], [2, 2]]), lambda a: a[[[2, 0], [2, 2]]]),
    "a single row": (lambda v: tf1.gather(v, 1), lambda a: a[1]),
    "no row": (lambda v: tf1.gather(v, tf1.zeros([0], tf1.int32)), lambda a: a[:0]),
    "gather along axis 1": (lambda v: tf1.gather(v, [1], axis=1), lambda a: a[:, [1]]),
    "gather_nd": (lambda v: tf1.gather_nd(v, [[2, 1], [0, 0]]), lambda a: a[[2, 0], [1, 0]]),
    "gather_nd of rows": (lambda v: tf1.gather_nd(v, [[2], [2]]), lambda a: a[[2, 2]]),
    "embedding_lookup": (lambda v: tf1.nn.embedding_lookup(v, [3, 3]), lambda a: a[[3, 3]]),
    "with max_norm": (lambda v: tf1.nn.embedding_lookup(v, [1], max_norm=1.0), lambda a: a[[1]] / np.hypot(*a[1])),
    "embedding_lookup_sparse": (
        lambda v: tf1.nn.embedding_lookup_sparse(
            v, tf1.SparseTensor([[0, 0], [0, 1], [1, 0]], [1, 1, 3], [2, 2]), None, combiner="sum"
        ),
        lambda a: np.stack([2 * a[1], a[3]]),
    ),
    "sparse_read": (lambda v: v.sparse_read([1]), lambda a: a[[1]]),
    "value()": (lambda v: v.value(), lambda a: a),
    "read_value()": (lambda v: v.read_value(), lambda a: a),
    "conversion": (lambda v: v * 2.0, lambda a: 2 * a),
    "gather of the value": (lambda v: tf1.gather(tf1.identity(v), [1, 1]), lambda a: a[[1, 1]]),
    "in a branch": (
        lambda v: tf1.cond(tf1.constant(True), lambda: tf1.gather(v, [1, 1]) * 3.0, lambda: tf1.gather(v, [0, 2])),
        lambda a: 3 * a[[1, 1]],
    ),
    "in a loop": (
        lambda v: tf1.while_loop(
            lambda i, _: i < 3, lambda i, t: (i + 1, t + tf1.gather(v, [i, 1])), [0, tf1.zeros([2, 2])]
        )[1],
        lambda a: np.stack([a[:3].sum(axis=0), 3 * a[1]]),
    ),
}
VALUE = np.arange(8, dtype=np.float32).reshape(4, 2) + 1


@pytest.fixture(scope="module")
def cluster() -> LocalCluster:
    return LocalCluster(2)


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("way", LOOKUPS)
def test_every_read_gives_rows_and_the_gradient_of_a_plain_variable(way: str, v2: bool, cluster: LocalCluster) -> None:
    read, expected = LOOKUPS[way]
    with control_flow(v2):
        with tf1.Graph().as_default() as plain, tf1.Session(graph=plain) as session:
            variable = tf1.get_variable("v", initializer=VALUE, use_resource=True)
            gradient = gradient_of(read(variable), variable)
            session.run(variable.initializer)
            wanted = session.run(gradient)
        with tf1.Graph().as_default() as graph:
            (bucket,) = make_plan([VariableSpec("v", (4, 2), "float32", sparse=True)], 2, 1 << 20).buckets
            (store,) = BucketSection([bucket], 2).stores
            _, handle = store.pull_handle()
            with tf1.device("/job:worker/task:0"):
                view = TableRead(store.bucket, handle, "/job:worker/task:0")
                with substitute({"v": view}, PulledRead(tf1.constant(0, tf1.int64))) as captured:
                    result = read(tf1.get_variable("v", initializer=VALUE))
                gradient = gradient_of(result, handle)
                fill = store.master.assign(captured.initial_values["v"])
        with cluster.session(graph) as session:
            session.run([store.section.version.initializer, fill])
            value, ours = session.run([result, gradient])
        np.testing.assert_allclose(value, expected(VALUE), rtol=1e-6)
        np.testing.assert_allclose(ours, wanted, rtol=1e-6)


def gradient_of(result: Any, source: Any) -> Any:
    weights = tf1.reshape(tf1.cast(tf1.range(tf1.size(result)), tf1.float32) + 1.0, tf1.shape(result))
    (gradient,) = tf1.gradients(tf1.reduce_sum(weights * result), [source])
    return tf1.convert_to_tensor(gradient)
