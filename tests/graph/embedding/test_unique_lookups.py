"""Ids that are unique already are not made so again, and what is trained is what plain TensorFlow trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.graph.base.graphs import ancestors
from psruntime.graph.embedding.segment_products import take_products
from psruntime.model import Model, ModelSpec
from tests.graph.embedding.test_table_groups import BATCH, IDS, input_fn, table
from tests.graph.step.test_against_tensorflow import OPTIMIZERS, STEPS, plain_tensorflow
from tests.support.control_flow import control_flow
from tests.support.local_cluster import LocalCluster, train

SUMS = {
    "sum": tf1.sparse_segment_sum,
    "mean": tf1.sparse_segment_mean,
    "sqrtn": tf1.sparse_segment_sqrt_n,
}
WIDE = (32,)
KINDS = {"plain": 3, "gathered again": 3, "two of a table": 5}  # how often ids are made unique


def combined_model(kind: str) -> Model:
    """Each table has a lookup by embedding_lookup_sparse; of KINDS."""

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        places = tf1.constant([[example, number] for example in range(BATCH) for number in range(IDS)], tf1.int64)
        total = 0.0
        for number, (name, combiner) in enumerate(zip(["user", "item", "shop"], SUMS, strict=True)):
            ids = tf1.SparseTensor(places, tf1.reshape(features[:, number], [-1]), [BATCH, IDS])
            with tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
                variable = table(name)
            rows = tf1.nn.embedding_lookup_sparse(variable, ids, None, combiner=combiner)
            if kind == "two of a table" and name == "shop":
                rows += tf1.stop_gradient(tf1.gather(variable, tf1.unique(features[:, number, 0])[0])[:1])
            if kind == "gathered again" and name == "item":
                rows = tf1.gather(rows, [1, 1, *range(2, BATCH)])
            total += tf1.reduce_sum(rows * rows, axis=1)
        kernel = tf1.get_variable("kernel", [], initializer=tf1.ones_initializer())
        return ModelSpec(tf1.reduce_mean(tf1.square(kernel * total - labels)), OPTIMIZERS["momentum"], 0.01)

    return Model("tests.combined", input_fn, model_fn)


@pytest.mark.long
@pytest.mark.parametrize("num_ps", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_unique_ids_travel_as_they_are_and_train_as_in_plain_tensorflow(kind: str, num_ps: int, tmp_path: Any) -> None:
    model = combined_model(kind)
    run = train(LocalCluster(num_ps), model, STEPS, checkpoint_dir=str(tmp_path))
    ours = run.saved()
    for name, value in plain_tensorflow(model, STEPS).items():
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=1e-6 * max(1.0, np.abs(value).max()), err_msg=name)
    (group,) = run.graph.plan.groups
    (fetched,) = run.graph.model.lookups.fetched(group)
    made_unique = [op for op in ancestors(fetched.results) if op.type == "Unique"]
    assert len(made_unique) == KINDS[kind], "each once, by the model, and together where a table has two"


@pytest.mark.parametrize("kind", SUMS)
@pytest.mark.parametrize("dtype", [tf1.float32, tf1.float64])
@pytest.mark.parametrize("row_shape", [(), (1,), (16,), (2, 3), WIDE])
@pytest.mark.parametrize("num_segments", [None, 9])
def test_gradients_of_segments_are_tensorflows(
    kind: str, dtype: Any, row_shape: tuple[int, ...], num_segments: int | None
) -> None:
    """Sums to the bit, also where segments are empty; the last rows are in none.

    Where there are no terms at all, TensorFlow gives what it finds in memory.
    """
    random = np.random.RandomState(5)
    for segments in ([0, 0, 0, 2, 2, 7], []):
        with tf1.Graph().as_default() as graph, tf1.Session() as session:
            rows = tf1.constant(random.standard_normal([8, *row_shape]), dtype)
            taken = tf1.constant(random.randint(0, 6, len(segments)), tf1.int32)
            options = {} if num_segments is None else {"num_segments": num_segments}
            result = SUMS[kind](rows, taken, tf1.constant(segments, tf1.int32), **options)
            at_result = tf1.cast(tf1.random.stateless_normal(tf1.shape(result), [1, 2]), dtype)
            (theirs,) = tf1.gradients(result, rows, at_result)
            take_products(graph.get_operations())
            (ours,) = tf1.gradients(result, rows, at_result)
            is_product = any(op.type == "SparseTensorDenseMatMul" for op in ancestors([ours]))
            assert is_product == (row_shape != WIDE), "which are left to TensorFlow"
            found, expected = session.run([ours, theirs])
        if not segments and is_product:
            expected = np.zeros_like(expected)
        assert found.shape == expected.shape == (8, *row_shape)
        if segments or is_product:
            np.testing.assert_allclose(found, expected, rtol=0 if kind == "sum" else 1e-6, atol=0)


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("kind", SUMS)
def test_gradients_of_segments_that_are_gathered_in_a_branch_are_tensorflows(kind: str, v2: bool) -> None:
    with control_flow(v2), tf1.Graph().as_default() as graph, tf1.Session() as session:
        rows = tf1.constant(np.arange(16, dtype="float32").reshape(4, 4))
        sums, is_taken = SUMS[kind](rows, [0, 1, 3, 3], [0, 0, 1, 1]), tf1.placeholder(tf1.bool, [])
        numbers = tf1.range(tf1.cast(tf1.reduce_sum(rows), tf1.int32) % 3)
        result = tf1.cond(is_taken, lambda: tf1.reduce_sum(tf1.gather(sums, numbers // 2) ** 2), lambda: 0.0)
        (theirs,) = tf1.gradients(result, rows)
        take_products(graph.get_operations())
        (ours,) = tf1.gradients(result, rows)
        assert any(op.type == "SparseTensorDenseMatMul" for op in ancestors([ours]))
        for taken in (True, False):
            found, expected = session.run([ours, tf1.convert_to_tensor(theirs)], {is_taken: taken})
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_gradient_of_the_users_own_stays() -> None:
    @tf1.RegisterGradient("PsruntimeTestSeven")  # type: ignore[untyped-decorator]
    def seven(op: Any, gradient: Any) -> list[Any]:
        return [7.0 * tf1.ones_like(op.inputs[0]), None, None]

    with tf1.Graph().as_default() as graph, tf1.Session() as session:
        rows = tf1.ones([3, 2])
        with graph.gradient_override_map({"SparseSegmentSum": "PsruntimeTestSeven"}):
            result = tf1.sparse_segment_sum(rows, [0, 1], [0, 0])
        take_products(graph.get_operations())
        assert (session.run(tf1.gradients(result, rows)[0]) == 7.0).all()
