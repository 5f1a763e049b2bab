"""Batches of dense, sparse and ragged tensors, fed into the training session."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.graph.input.batches import BatchLayout
from psruntime.graph.input.input_stream import InputStream
from psruntime.model import Context, Model, ModelSpec
from tests.support.local_cluster import LocalCluster, train
from tests.support.small_models import get

CONTEXT = Context("train", 0, 1, 4, "", 3)
CASES = ["sparse async", "sparse sync", "ragged async", "ragged sync"]


def as_sparse(i: Any) -> Any:
    """Example i has i % 3 + 1 ids: i, i + 1, ..., modulo 7."""
    count = i % 3 + 1
    ids = (i + tf1.range(count)) % 7
    return tf1.SparseTensor(tf1.range(count)[:, tf1.newaxis], ids, [3])


def stream(*, kind: str, labels_first: bool = False) -> Any:
    def input_fn(context: Context) -> Any:
        numbers = tf1.data.Dataset.range(100)
        ids = numbers.map(as_sparse).batch(context.batch_size, drop_remainder=True)
        if kind == "ragged":
            ids = ids.map(tf.RaggedTensor.from_sparse)
        labels = numbers.map(lambda i: tf1.cast(i % 2, tf1.float32)).batch(context.batch_size, drop_remainder=True)
        return tf1.data.Dataset.zip((ids, labels) if not labels_first else ({"b": ids, "a": labels}, labels))

    return input_fn


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    ids = features.to_sparse() if isinstance(features, tf.RaggedTensor) else features
    assert ids.shape.rank == 2
    table = get("table", [7, 2], 3)
    found = tf1.nn.embedding_lookup_sparse(table, ids, None, combiner="sum")
    loss = tf1.reduce_mean(tf1.square(tf1.reduce_sum(found, axis=1) - labels))
    return ModelSpec(loss, tf1.train.GradientDescentOptimizer, 0.1)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_sparse_ids_train_a_table(case: str, tmp_path: Any) -> None:
    kind, mode = case.split()
    model = Model("tests.sparse", stream(kind=kind), model_fn)
    run = train(LocalCluster(2), model, 10, mode=mode, checkpoint_dir=str(tmp_path))
    assert {result.examples for result in run.results} == {8}, "not the number of ids"
    table = tf1.train.load_checkpoint(run.checkpoints.latest()).get_tensor("table")
    np.testing.assert_allclose(table, by_hand(10), rtol=1e-5)


def by_hand(steps: int) -> Any:
    with tf1.Graph().as_default(), tf1.Session() as session:
        start = get("table", [7, 2], 3)
        session.run(start.initializer)
        table = session.run(start)
    for step in range(steps):
        rows = [(8 * step + k) for k in range(8)]
        gradient = np.zeros_like(table)
        for i in rows:
            ids = [(i + j) % 7 for j in range(i % 3 + 1)]
            error = table[ids].sum() - i % 2
            for row in ids:
                gradient[row] += 2 * error / 8
        table = table - 0.1 * gradient
    return table


def test_the_first_dense_tensor_counts_the_examples() -> None:
    inputs = InputStream(Model("m", stream(kind="sparse", labels_first=True), model_fn), CONTEXT)
    assert inputs.examples(inputs.draw_endlessly()) == CONTEXT.batch_size


def test_lookup_tables_of_the_input_are_initialised() -> None:
    def input_fn(context: Context) -> Any:
        words = tf.lookup.StaticVocabularyTable(
            tf.lookup.KeyValueTensorInitializer(["a", "b"], tf1.constant([0, 1], tf1.int64)), 1
        )
        return tf1.data.Dataset.from_tensor_slices(["b", "z"]).map(words.lookup).batch(2)

    inputs = InputStream(Model("m", input_fn, model_fn), CONTEXT)
    assert [array.tolist() for array in inputs.draw_endlessly()] == [[1, 2]]


@pytest.mark.parametrize(
    ("features", "labels", "differs"),
    [
        (np.ones([3, 2, 1]), np.ones([2]), "the features have first dimension 3 and the labels 2"),  # time-major
        (np.ones([2, 3]), np.ones([2]), ""),
        ({"a": np.float64(1.0), "b": np.ones([2])}, np.ones([2]), "first dimension 1 and the labels 2"),
        ({"a": np.ones([2, 4]), "side": np.ones([7])}, {"w": np.ones([9]), "y": np.ones([2])}, ""),
        (np.ones([2, 3]), np.float64(1.0), ""),  # nothing else counts
    ],
)
def test_features_that_count_otherwise_than_the_labels(features: Any, labels: Any, differs: str) -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        layout = BatchLayout(
            tf1.data.make_one_shot_iterator(tf1.data.Dataset.from_tensors((features, labels))).get_next()
        )
        found = layout.miscounted(session.run(layout.tensors))
    assert differs in found and bool(differs) == bool(found)


@pytest.mark.parametrize(("value", "examples"), [(7.0, 1), ([1.0, 2.0, 3.0], 3)])
@pytest.mark.parametrize("first", [True, False])
def test_a_tensor_of_unknown_rank_may_be_a_scalar(value: Any, examples: int, first: bool) -> None:
    """As a Python function makes it, that says nothing of shapes."""
    with tf1.Graph().as_default(), tf1.Session() as session:
        unknown = tf1.numpy_function(lambda: np.array(value, np.float32), [], tf1.float32)
        layout = BatchLayout(unknown if first else (tf1.ones([3, 2]), unknown))
        batch = session.run(layout.tensors)
        assert layout.miscounted(batch) == ""
        assert layout.examples(batch, np.shape) == (examples if first else 3)
        assert session.run(layout.examples(layout.tensors, tf1.shape)) == (examples if first else 3)
