"""The initial value of a large table is made in chunks, on each ps its own rows, and to the bit as it is whole."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1
import tf_keras

from psruntime.graph.base.graphs import ancestors
from psruntime.graph.base.variable_values import ALIGNED, rows_of
from psruntime.graph.recovery.initial_values import InitialValues
from psruntime.model import Context, Model, ModelSpec
from tests.graph.step.test_against_tensorflow import plain_tensorflow
from tests.support.local_cluster import LocalCluster, train
from tests.support.selection import long_but

ROWS, WIDTH = 203, 7
DTYPES = [tf1.float32, tf1.float64, tf1.float16, tf1.bfloat16]
INITIALIZERS: dict[str, Any] = {
    "uniform": partial(tf1.random_uniform_initializer, -0.3, 0.7),
    "normal": partial(tf1.random_normal_initializer, 0.1, 0.2),
    "truncated": partial(tf1.truncated_normal_initializer, 0.0, 0.2),
    "glorot": tf1.glorot_uniform_initializer,
    "scaled": partial(tf1.variance_scaling_initializer, 2.0, "fan_in", "untruncated_normal"),
    "glorot of Keras": tf_keras.initializers.GlorotNormal,
    "zeros": lambda seed: tf1.zeros_initializer(),
}


def not_drawn_without_a_seed(op: Any) -> Any:
    raise AssertionError(f"{op.name} has a seed")


@pytest.mark.parametrize("dtype", long_but(DTYPES[:1], DTYPES), ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("seed", long_but([5], [0, 5, -1]))
def test_rows_are_those_of_the_whole_value_to_the_bit(dtype: Any, seed: int) -> None:
    with tf1.Graph().as_default() as graph:
        tf1.set_random_seed(seed)
        whole, parts = {}, {}
        first, number = tf1.placeholder(tf1.int64, []), tf1.placeholder(tf1.int64, [])
        for name, initializer in INITIALIZERS.items():
            whole[name] = initializer(seed=seed)([ROWS, WIDTH], dtype)
            rows = rows_of(whole[name], not_drawn_without_a_seed)
            assert rows, name
            parts[name] = rows(first, number)
        with tf1.Session(graph=graph) as session:
            expected = session.run(whole)
            for begin, count in [(0, 4), (ALIGNED * 9, 41), (ALIGNED * 20, ROWS - ALIGNED * 20), (ALIGNED, 0)]:
                made = session.run(parts, {first: begin, number: count})
                for name, value in made.items():
                    np.testing.assert_array_equal(value, expected[name][begin : begin + count], err_msg=name)


def test_what_is_not_drawn_by_entry_has_to_be_computed_whole() -> None:
    with tf1.Graph().as_default():
        for value in [
            tf1.constant(np.arange(12.0).reshape(6, 2)),
            tf1.orthogonal_initializer()([6, 2]),
            tf1.ones([6, 2]) * tf1.constant(np.arange(12.0, dtype=np.float32).reshape(6, 2)),
            tf1.exp(tf1.random.uniform([6, 2], seed=1)),  # may round otherwise at the end of a tensor
        ]:
            assert rows_of(value, not_drawn_without_a_seed) is None


def tables_model(seed: int | None) -> Model:
    """Tables of one group; one begins as twice another one."""

    def input_fn(context: Context) -> Any:
        return tf1.data.Dataset.from_tensors((np.arange(8), np.ones(8, np.float32))).repeat()

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        tables = [
            tf1.get_variable("truncated", [103, WIDTH], initializer=tf1.truncated_normal_initializer(seed=seed)),
            tf1.get_variable("uniform", [57, WIDTH], initializer=tf1.random_uniform_initializer(-1, 3, seed=seed)),
            tf1.get_variable("filled", [40, WIDTH], initializer=tf1.ones_initializer()),
            tf1.get_variable("listed", initializer=np.arange(9.0 * WIDTH, dtype=np.float32).reshape(9, WIDTH)),
        ]
        double = tables[0].initial_value * 2
        tables.append(tf1.get_variable("double", initializer=double))
        found = tf1.add_n([tf1.nn.embedding_lookup(table, features) for table in tables])
        loss = tf1.reduce_mean(tf1.square(tf1.reduce_sum(found, axis=1) - labels))
        return ModelSpec(loss, tf1.train.GradientDescentOptimizer, 0.1)

    return Model("tests.chunks", input_fn, model_fn)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psruntime.graph.base.variable_values.CHUNK_BYTES", 10 * WIDTH * 4)
    monkeypatch.setattr("psruntime.graph.recovery.initial_values.COMPUTED_WHOLE_BYTES", 0)


@pytest.mark.long
@pytest.mark.parametrize("num_ps", [1, 2, 3])
def test_tables_begin_as_in_plain_tensorflow(num_ps: int, tmp_path: Any) -> None:
    model = tables_model(seed=3)
    run = train(LocalCluster(num_ps), model, 0, checkpoint_dir=str(tmp_path))
    assert [len(group.tables) for group in run.graph.plan.groups] == [5]
    ours = run.saved()
    for name, expected in plain_tensorflow(model, 0).items():
        np.testing.assert_array_equal(ours[name], expected, err_msg=name)


@pytest.mark.long
def test_without_a_seed_each_run_draws_anew_and_what_is_shared_is_the_same(tmp_path: Any) -> None:
    first, second = [
        train(LocalCluster(2), tables_model(seed=None), 0, checkpoint_dir=str(tmp_path / name)).saved()
        for name in ("first", "second")
    ]
    np.testing.assert_array_equal(first["double"], 2 * first["truncated"])
    assert not np.intersect1d(first["uniform"], second["uniform"]).size
    for values in (first["truncated"], first["uniform"]):
        assert len(np.unique(values)) > 0.99 * values.size, "no row is made of another one's numbers"


@pytest.mark.long
def test_no_process_computes_the_value_of_a_large_table_whole() -> None:
    graph = train(LocalCluster(2), tables_model(seed=3), 0).graph
    graph.graph._unsafe_unfinalize()
    written: list[Any] = []
    with graph.graph.as_default():
        InitialValues(graph).assign(lambda operations, feed=None: written.extend(operations), {0, 1})
    drawing = {op.type for op in ancestors(written) if "Random" in op.type or "Normal" in op.type}
    assert drawing == {"StatelessRandomUniformV2", "StatelessTruncatedNormalV2"}
