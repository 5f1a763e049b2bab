"""The optimizers for tables on several ps: they train what plain TensorFlow trains with them, and checkpoints move."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime import optimizers
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.pulled_model import record_specs
from psruntime.model import Context, Model, ModelSpec
from tests.graph.embedding.test_table_groups import (
    ALONE,
    LOOKED_UP_IN_A_LOOP,
    ROWS,
    WIDTH,
    compare,
    grouped,
    input_fn,
    table,
    tables_model,
)
from tests.graph.model.test_tables import saved_and_moved
from tests.graph.step.test_against_tensorflow import STEPS, plain_tensorflow
from tests.support.local_cluster import LocalCluster, train

FTRL = {"l1_regularization_strength": 0.01, "l2_regularization_strength": 0.02, "l21_regularization_strength": 0.02}
LAZY = {
    "LazyAdam": partial(optimizers.LazyAdam, epsilon=0.01),  # see EVERY of test_table_groups.py
    "RowwiseAdagrad": optimizers.RowwiseAdagrad,
    "GroupFtrl": partial(optimizers.GroupFtrl, **FTRL),
}
SLOTS = {"LazyAdam": ["Adam", "Adam_1"], "RowwiseAdagrad": ["RowwiseAdagrad"], "GroupFtrl": ["Ftrl", "Ftrl_1"]}


@pytest.mark.long
@pytest.mark.parametrize("optimizer", LAZY)
@pytest.mark.optimised
def test_twenty_steps_equal_plain_tensorflow(optimizer: str, tmp_path: Any) -> None:
    """Tables in groups whatever the optimizer, and what is dense with them: kernel [WIDTH, 1]."""
    model = tables_model(LAZY[optimizer])
    run = train(LocalCluster(2), model, STEPS, checkpoint_dir=str(tmp_path))
    compare(model, run)
    assert grouped(run) == [set(ROWS) - {LOOKED_UP_IN_A_LOOP}, set(ALONE)]
    assert {f"user/{slot}" for slot in SLOTS[optimizer]} < set(run.saved())


@pytest.mark.long
@pytest.mark.parametrize("optimizer", LAZY)
@pytest.mark.optimised
def test_twenty_rounds_equal_plain_tensorflow(optimizer: str, tmp_path: Any) -> None:
    model = tables_model(LAZY[optimizer])
    compare(model, train(LocalCluster(3), model, STEPS, mode="sync", checkpoint_dir=str(tmp_path)))


@pytest.mark.long
@pytest.mark.parametrize("num_ps", [3, 1])
def test_a_checkpoint_with_a_slot_of_an_entry_a_row_goes_to_any_number_of_ps(num_ps: int, tmp_path: Any) -> None:
    """From 2 ps; its rows are spread and interleaved as those of the table are."""
    model = tables_model(LAZY["RowwiseAdagrad"])
    saved = saved_and_moved(model, (2, num_ps), str(tmp_path))
    expected = plain_tensorflow(model, 4)
    for name, rows in {**ROWS, **ALONE}.items():
        accumulator = saved[f"{name}/RowwiseAdagrad"]
        assert accumulator.shape == (rows,)
        np.testing.assert_allclose(accumulator, expected[f"{name}/RowwiseAdagrad"], rtol=1e-6, err_msg=name)
        assert len(np.unique(accumulator)) > 2


@pytest.mark.long
@pytest.mark.parametrize("chunk", [WIDTH * 40, 1 << 20])
def test_training_goes_on_on_other_ps_as_if_it_had_not_ended(
    chunk: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fits into a chunk of a checkpoint."""
    endless = tables_model(LAZY["RowwiseAdagrad"])
    model = replace(endless, input_fn=lambda context: endless.input_fn(context).take(4))  # the same four again
    unbroken = train(LocalCluster(1), model, 7, checkpoint_dir=str(tmp_path / "unbroken")).saved()
    monkeypatch.setattr("psruntime.graph.base.variable_values.CHUNK_BYTES", chunk)
    train(LocalCluster(2), model, 4, checkpoint_dir=str(tmp_path / "moved"))
    run = train(LocalCluster(3), model, 3, checkpoint_dir=str(tmp_path / "moved"))
    assert run.control_plane.prepared_at == [4]
    for name, value in run.saved().items():
        np.testing.assert_allclose(value, unbroken[name], rtol=1e-5, atol=1e-5, err_msg=name)


def parted(rows: int, columns: int) -> Model:
    """A table cut by a partitioner into `rows` x `columns` parts, each of which is a variable."""

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        parts = tf1.get_variable(
            "table",
            [40, WIDTH],
            initializer=tf1.truncated_normal_initializer(seed=2),
            partitioner=lambda shape, dtype: [rows, columns],
        )
        if columns == 1:
            found = tf1.nn.embedding_lookup(parts, features[:, 0, 0], partition_strategy="div")
        else:
            found = tf1.concat([tf1.gather(part, features[:, 0, 0]) for part in parts], axis=1)
        predicted = tf1.reduce_sum(found * [1.0, 2.0, 3.0, 4.0], axis=1)
        return ModelSpec(tf1.reduce_mean(tf1.square(predicted - labels)), LAZY["RowwiseAdagrad"], 0.1)

    return Model("tests.parted", input_fn, model_fn)


@pytest.mark.long
@pytest.mark.parametrize(("rows", "columns"), [(2, 1), (1, 2)])
def test_each_part_of_a_partitioned_table_keeps_the_slots_of_its_rows(rows: int, columns: int, tmp_path: Any) -> None:
    """Rows that are cut have an accumulator in each part, which is saved under the part's own name."""
    model = parted(rows, columns)
    saved = saved_and_moved(model, (2, 1), str(tmp_path))
    expected = plain_tensorflow(model, 4)
    of_parts = [expected[f"table/part_{part}/RowwiseAdagrad"] for part in range(2)]
    if columns == 1:
        np.testing.assert_allclose(saved["table/RowwiseAdagrad"], np.concatenate(of_parts), rtol=1e-6)
    else:
        assert np.any(of_parts[0] != of_parts[1])
        for part in range(2):
            np.testing.assert_allclose(saved[f"table/part_{part}/RowwiseAdagrad"], of_parts[part], rtol=1e-6)


def test_dense_variables_stay_whole_under_an_optimizer_by_rows_and_tables_do_not() -> None:
    def whole(optimizer: Any) -> set[str]:
        model = tables_model(optimizer)
        specs = record_specs(model, InputStream(model, Context("train", 0, 1, 8, "", 3)), "train")
        return {spec.name for spec in specs if spec.whole}

    assert whole(LAZY["LazyAdam"]) == set()
    assert whole(LAZY["RowwiseAdagrad"]) == whole(LAZY["GroupFtrl"]) == {"kernel", LOOKED_UP_IN_A_LOOP}


@pytest.mark.long
def test_replicas_bring_the_slots_of_rows_back(tmp_path: Any) -> None:
    cluster, model = LocalCluster(2), tables_model(LAZY["RowwiseAdagrad"])
    before = train(cluster, model, 4, replicate_every=1, checkpoint_dir=str(tmp_path / "before")).saved()
    cluster.forget(1)
    run = train(cluster, model, 0, replicate_every=1, checkpoint_dir=str(tmp_path / "after"))
    assert run.control_plane.prepared_at == [4]
    after = run.saved()
    for name in ("user", "user/RowwiseAdagrad", "bias/RowwiseAdagrad", "kernel/RowwiseAdagrad"):
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)


@pytest.mark.long
def test_adam_and_lazy_adam_go_on_from_each_others_checkpoints(tmp_path: Any) -> None:
    adam = tables_model(partial(tf1.train.AdamOptimizer, epsilon=0.01))
    before = train(LocalCluster(2), adam, 4, checkpoint_dir=str(tmp_path)).saved()
    run = train(LocalCluster(3), tables_model(LAZY["LazyAdam"]), 0, checkpoint_dir=str(tmp_path))
    assert run.control_plane.prepared_at == [4]
    np.testing.assert_equal(run.saved(), before)


@pytest.mark.long
def test_lazy_adam_beside_adam_has_the_names_of_stock(tmp_path: Any) -> None:
    """Two optimizers that share numbers of one name: stock calls those of the second beta1_power_1."""

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        rows = tf1.gather(table("user"), features[:, 0, 0])
        kernel = tf1.get_variable("kernel", [WIDTH, 1], initializer=tf1.ones_initializer())
        loss = tf1.reduce_mean(tf1.square(tf1.matmul(rows, kernel)[:, 0] - labels))
        adam = {"user": optimizers.LazyAdam, "*": partial(tf1.train.AdamOptimizer, beta1=0.5)}
        return ModelSpec(loss, adam, 0.01)

    model = Model("tests.two_adams", input_fn, model_fn)
    saved = saved_and_moved(model, (2, 1), str(tmp_path))
    assert saved["beta1_power"] == pytest.approx(0.9**5) and saved["beta1_power_1"] == pytest.approx(0.5**5)
