"""What psruntime.embedding takes, and what it says of what it does not take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

import psruntime
from psruntime.errors import UsageError
from psruntime.graph.embedding.dynamic_table import hashed, initial_rows, sets_of
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.pulled_model import record_specs
from psruntime.model import Context, Model, ModelSpec
from tests.support import dynamic_reference

WIDTH = 3
PER_EXAMPLE = [[5, -7], [], [5, 1 << 61, 2]]


def read(build: Any) -> Any:
    with tf1.Graph().as_default(), tf1.Session() as session:
        result = build()
        session.run(tf1.global_variables_initializer())
        return session.run(result)


def embedded(ids: Any, **settings: Any) -> Any:
    return psruntime.embedding(ids, "table", WIDTH, **{"capacity": 64, **settings})


def row(number: int) -> Any:
    drawn = initial_rows(tf1.random_uniform_initializer(-0.05, 0.05), "table", None)
    return dynamic_reference.uniform_rows(drawn, [number], WIDTH)[0]


def test_hashes_are_those_of_splitmix() -> None:
    numbers = np.array([0, 1, -1, 1 << 62, -(1 << 63)], np.int64)
    expected = dynamic_reference.hashed(numbers.astype(np.uint64))
    assert (read(lambda: hashed(tf1.constant(numbers))) == expected).all()
    assert (read(lambda: sets_of(tf1.constant(numbers), 7)) == (expected % np.uint64(7)).astype(np.int64)).all()


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_the_ids_of_an_example_are_combined(kind: str, combiner: str) -> None:
    divisor = {"sum": lambda _: 1, "mean": len, "sqrtn": lambda ids: len(ids) ** 0.5}[combiner]
    expected = [sum(map(row, ids), np.zeros(WIDTH)) / (divisor(ids) if ids else 1) for ids in PER_EXAMPLE]

    def build() -> Any:
        ragged = tf.ragged.constant(PER_EXAMPLE, tf.int64)
        return embedded(ragged if kind == "ragged" else ragged.to_sparse(), combiner=combiner)

    np.testing.assert_allclose(read(build), expected, atol=1e-7)


def test_ids_of_any_shape_have_rows_of_their_own_and_strings_those_of_their_hashes() -> None:
    ids = np.array([[[1, 2], [3, 1]]], np.int32)
    found = read(lambda: embedded(ids))
    assert found.shape == (1, 2, 2, WIDTH)
    np.testing.assert_allclose(found[0, 1], [row(3), row(1)], atol=1e-7)
    np.testing.assert_allclose(read(lambda: embedded(ids, combiner="mean"))[0, 0], (row(1) + row(2)) / 2, atol=1e-7)
    words = read(
        lambda: [embedded(tf1.constant(["a", "b"])), tf1.strings.to_hash_bucket_fast(["a", "b"], (1 << 63) - 1)]
    )
    np.testing.assert_allclose(words[0], [row(int(number)) for number in words[1]], atol=1e-7)


@pytest.mark.parametrize(
    "initializer, mean, deviation",
    [
        (2.5, 2.5, 0.0),
        (tf1.ones_initializer(), 1.0, 0.0),
        (tf1.random_uniform_initializer(1.0, 2.0), 1.5, 12**-0.5),
        (tf1.random_normal_initializer(0.5, 2.0), 0.5, 2.0),
        (tf1.truncated_normal_initializer(0.0, 1.0, seed=3), 0.0, 0.8796),
    ],
)
def test_initial_rows_have_the_distribution_of_the_initializer(initializer: Any, mean: float, deviation: float) -> None:
    drawn = read(lambda: embedded(np.arange(20_000), initializer=initializer))
    assert drawn.mean() == pytest.approx(mean, abs=0.03) and drawn.std() == pytest.approx(deviation, abs=0.02)
    again = read(lambda: embedded(np.arange(10, 20), initializer=initializer))
    assert (again == drawn[10:20]).all(), "a row depends on its id alone"
    if deviation:
        assert len(np.unique(drawn)) > 0.99 * drawn.size


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"capacity": 0}, "capacity must be a whole number from 1, got 0"),
        ({"admit_after": 0}, "admit_after must be a whole number from 1, got 0"),
        ({"expire_after_steps": -1}, "expire_after_steps must be a whole number from 0, got -1"),
        ({"combiner": "max"}, "combiner must be one of sum, mean, sqrtn, got 'max'"),
        ({"initializer": tf1.orthogonal_initializer()}, "must be a number, or zeros_initializer"),
        ({"ids": [0.5]}, "ids must be int32, int64 or string, got float32"),
        ({"ids": tf.ragged.constant(PER_EXAMPLE)}, "give combiner: sum, mean, sqrtn"),
        ({"ids": lambda: tf1.SparseTensor([[0, 0, 0]], [3], [1, 1, 1]), "combiner": "sum"}, "ids must be of rank 2"),
    ],
)
def test_what_cannot_be_is_said(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=r"(initializer of )?dynamic table table") as caught:
        ids = settings.pop("ids", np.arange(3))
        read(lambda: embedded(ids() if callable(ids) else ids, **settings))
    assert said in str(caught.value)


def test_a_table_is_of_one_kind() -> None:
    with pytest.raises(UsageError, match="is made twice"):
        read(lambda: [embedded(np.arange(3)), embedded(np.arange(3), admit_after=2)])


def learned(look_up: Any, optimizer: Any = tf1.train.AdagradOptimizer) -> Any:
    """The specs of a model whose loss is of what this makes of its ids."""

    def input_fn(context: Context) -> Any:
        return tf1.data.Dataset.from_tensor_slices((np.arange(8), np.zeros(8, np.float32))).batch(context.batch_size)

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        return ModelSpec(tf1.reduce_sum(look_up(features)), optimizer, 0.1)

    model = Model("tests.embedding", input_fn, model_fn)
    inputs = InputStream(model, Context("train", 0, 1, 8, "", 3))
    try:
        return record_specs(model, inputs, "train")
    finally:
        inputs.close()


def test_the_plan_knows_of_the_rows_of_a_table() -> None:
    (spec,) = learned(lambda ids: embedded(ids, admit_after=3, expire_after_steps=5))
    assert (spec.shape, spec.sparse, spec.group) == ((2, 32, WIDTH), True, 1)
    assert spec.dynamic and (spec.dynamic.admit_after, spec.dynamic.expire_after) == (3, 5)


class Own(tf1.train.AdagradOptimizer):  # type: ignore[misc]
    """One of which nobody knows what it does."""


def test_a_table_needs_an_optimizer_that_is_known_and_lookups_at_the_outermost_level() -> None:
    with pytest.raises(UsageError, match="dynamic table table needs an optimizer"):
        learned(embedded, Own)
    with pytest.raises(UsageError, match="in a loop, a branch or a function"):
        learned(lambda ids: tf1.cond(tf1.reduce_sum(ids) > 0, lambda: embedded(ids), lambda: tf1.zeros([8, WIDTH])))


@pytest.mark.parametrize(
    "scope, said",
    [
        (
            {"regularizer": tf1.keras.regularizers.l2(0.1)},
            r"in another way than by psruntime.embedding \(a regularizer",
        ),
        ({"constraint": lambda rows: rows}, "the variable scope has a constraint"),
    ],
)
def test_a_table_is_only_looked_up(scope: dict[str, Any], said: str) -> None:
    def look_up(ids: Any) -> Any:
        with tf1.variable_scope("scope", **scope):
            rows = embedded(ids)
        losses = tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)
        return tf1.add_n([tf1.reduce_sum(rows), *losses])

    with pytest.raises(UsageError, match=said):
        learned(look_up)


def test_a_table_may_stay_as_it_is() -> None:
    def look_up(ids: Any) -> Any:
        return tf1.stop_gradient(embedded(ids)) * tf1.get_variable("kernel", [WIDTH])

    table, _ = learned(look_up)
    assert table.dynamic and table.sparse and table.group
