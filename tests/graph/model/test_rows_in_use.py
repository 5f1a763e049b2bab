"""An evaluation of a checkpoint holds of large tables only the rows that it looks up, and measures the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.graph.base.checkpoint_reader import RowsInUse
from psruntime.graph.model import evaluate
from psruntime.graph.model.evaluate import CheckpointEvaluation
from psruntime.model import Context, Model, ModelSpec
from tests.support.embedding_model import ROWS, input_fn
from tests.support.local_cluster import LocalCluster, train

EVALUATED = Context("eval", 0, 1, 8, "", 3)


def tables_model(mode_ids: Any = lambda ids: ids) -> Model:
    """Looked up by rows: one table twice, one by sparse ids, one in parts.  One is looked up by what another has, and
    one is read whole."""

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        uniform = tf1.random_uniform_initializer(-1, 1, seed=4)

        def table(name: str, *shape: int, **given: Any) -> Any:
            return tf1.get_variable(name, [ROWS, *shape], initializer=uniform, **given)

        ids = mode_ids(features)
        flat = tf1.reshape(ids, [-1, 4, 1])
        positions = tf1.cast(tf1.where(tf1.ones_like(flat))[:, :2], tf1.int64)
        sparse = tf1.SparseTensor(positions, tf1.reshape(ids, [-1]), tf1.shape(ids, out_type=tf1.int64))
        twice = table("twice", 3)
        first = table("first")
        chained = tf1.cast(5 + 4 * tf1.gather(first, ids[:, 0]), tf1.int64)
        whole = table("whole", 3)
        values = [
            tf1.reduce_sum(tf1.nn.embedding_lookup(twice, ids), axis=1),
            tf1.gather(twice, ids[:, 1]),
            tf1.nn.embedding_lookup_sparse(table("sparse", 3), sparse, None, combiner="sum"),
            tf1.nn.embedding_lookup(table("parts", 3, partitioner=tf1.fixed_size_partitioner(3)), ids[:, 2], "div"),
            tf1.gather(table("second", 3), chained),
            tf1.gather(whole, ids[:, 3]) + tf1.reduce_mean(whole, axis=0),
        ]
        prediction = tf1.reduce_sum(tf1.add_n(values), axis=1)
        loss = tf1.reduce_mean(tf1.square(prediction - labels))
        metrics = {"mean": tf1.metrics.mean(prediction)} if mode == "eval" else None
        return ModelSpec(loss, tf1.train.GradientDescentOptimizer, 1e-3, metrics=metrics)

    return Model("tests.rows_in_use", lambda context: input_fn(context).take(7), model_fn)


def taken(evaluation: CheckpointEvaluation) -> set[str]:
    rows: RowsInUse = evaluation._built[3]
    return {variable.op.name for variable in rows.variables}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are large, and moved in small chunks; rows are read for two batches at once."""
    monkeypatch.setattr("psruntime.graph.base.checkpoint_reader.LARGE_BYTES", 8)
    monkeypatch.setattr(evaluate, "BATCHES_BYTES", 2 * 8 * (4 * 8 + 4))


@pytest.mark.long
@pytest.mark.usefixtures("small")
def test_it_measures_what_is_measured_with_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tables_model()
    run = train(LocalCluster(2), model, 3, checkpoint_dir=str(tmp_path))
    path = str(run.checkpoints.latest())
    evaluation = CheckpointEvaluation(model, EVALUATED)
    parts = {f"parts/part_{i}" for i in range(3)}
    assert taken(evaluation) == {"twice", "sparse", "first", *parts}
    monkeypatch.setattr("psruntime.graph.base.variable_values.CHUNK_BYTES", 7 * 12)
    measured = evaluation.measure(path)
    assert evaluation.measure(path) == measured
    with monkeypatch.context() as patch:
        patch.setattr("psruntime.graph.base.checkpoint_reader.LARGE_BYTES", 1 << 30)
        with_all_rows = CheckpointEvaluation(model, EVALUATED)
        assert not taken(with_all_rows)
        assert measured == with_all_rows.measure(path)


@pytest.mark.usefixtures("small")
def test_a_table_that_is_looked_up_at_random_is_held_whole() -> None:
    model = tables_model(lambda ids: ids + tf1.random.uniform([], 0, 5, tf1.int64))
    assert not taken(CheckpointEvaluation(model, EVALUATED))


@pytest.mark.usefixtures("small")
def test_an_id_that_is_in_no_row_is_named(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        table = tf1.get_variable("table", [ROWS, 2])
        found = tf1.gather(table, features + (ROWS if mode == "eval" else 0))
        return ModelSpec(tf1.reduce_mean(found), tf1.train.GradientDescentOptimizer, 1e-3)

    model = Model("tests.wrong_ids", lambda context: input_fn(context).take(2), model_fn)
    run = train(LocalCluster(1), model, 0, checkpoint_dir=str(tmp_path))
    with pytest.raises(ValueError, match=r"row \d+ of table is looked up, which has 50 rows"):
        CheckpointEvaluation(model, EVALUATED).measure(str(run.checkpoints.latest()))
