"""Variables that are not trainable: the chief's are saved, everybody takes them after a restore."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import VariableSpec
from psruntime.graph.base.variable_values import LASTING
from psruntime.graph.model.evaluate import PulledEvaluation
from psruntime.graph.step.setup import log_plan
from psruntime.model import Context, ModelSpec
from tests.support.local_cluster import INCARNATION, LocalCluster, Run, train
from tests.support.selection import long_but
from tests.support.small_models import get, linear, model_of


def norm_and_tables(x: Any, y: Any, ids: Any, *, updates: Any = None, training: bool = True) -> ModelSpec:
    """Batch norm with moving averages, a frozen vector, and a frozen table."""
    normed = tf1.layers.batch_normalization(x, training=training, momentum=0.5, name="norm")
    scale = tf1.get_variable("scale", initializer=np.arange(1, 6, dtype=np.float32), trainable=False)
    table = tf1.get_variable("table", initializer=np.arange(35, dtype=np.float32).reshape(7, 5), trainable=False)
    kernel = get("kernel", [5, 1])
    loss = linear(normed * scale + tf1.gather(table, ids), kernel, y)
    moving_mean = tf1.global_variables("norm/moving_mean")[0]
    metrics = {"moving_mean": tf1.metrics.mean(moving_mean)} if not training else None
    return ModelSpec(loss, tf1.train.GradientDescentOptimizer, 1e-4, updates=updates, metrics=metrics)


MODEL = model_of(norm_and_tables)
NORM = "norm/moving_mean", "norm/moving_variance"


def of_worker(run: Any, name: str) -> Any:
    """The worker's own copy."""
    with run.cluster.session(run.graph.graph) as session:
        return session.run(f"{name}/Read/ReadVariableOp:0")


def of_checkpoint(run: Any, name: str) -> Any:
    return tf1.train.load_checkpoint(run.checkpoints.latest()).get_tensor(name)


@pytest.mark.parametrize("mode", long_but(["sync"], ["async", "sync"]))
def test_moving_averages_move_and_the_chiefs_are_saved(mode: str, tmp_path: Any) -> None:
    run = train(LocalCluster(2), MODEL, 5, checkpoint_dir=str(tmp_path), mode=mode)
    for name in ("norm/moving_mean", "norm/moving_variance"):
        saved = of_checkpoint(run, name)
        assert not np.allclose(saved, 0.0)
        assert not np.allclose(saved, 1.0)
        np.testing.assert_array_equal(saved, of_worker(run, name))
    np.testing.assert_array_equal(of_checkpoint(run, "scale"), [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(of_checkpoint(run, "table"), np.arange(35).reshape(7, 5))


def test_kinds_are_told_by_what_the_model_does_with_a_variable() -> None:
    run = train(LocalCluster(1), MODEL, 1)
    fixed = [spec for spec in run.graph.plan.specs if not spec.trainable]
    assert fixed == [
        VariableSpec("norm/moving_mean", (5,), "float32", trainable=False),
        VariableSpec("norm/moving_variance", (5,), "float32", trainable=False),
        VariableSpec("scale", (5,), "float32", trainable=False),
        VariableSpec("table", (7, 5), "float32", sparse=True, trainable=False),
    ]
    assert set(run.graph.model.worker_copies.changed) == {"norm/moving_mean", "norm/moving_variance"}


@pytest.mark.long
def test_a_worker_that_joins_takes_what_the_chief_saved_and_keeps_its_own_afterwards(tmp_path: Any) -> None:
    cluster = LocalCluster(2)
    first = train(cluster, MODEL, 5, checkpoint_dir=str(tmp_path))
    saved = of_checkpoint(first, "norm/moving_mean")
    joined = LocalCluster(0)
    joined.ps, joined.states, joined.view = cluster.ps, cluster.states, cluster.view
    second = train(joined, MODEL, 0, ps=2)
    np.testing.assert_array_equal(of_worker(second, "norm/moving_mean"), saved)
    copies = second.graph.model.worker_copies
    with joined.session(second.graph.graph) as session:
        changing = next(iter(copies.changed["norm/moving_mean"]))
        own = second.graph.graph.get_operation_by_name(changing)
        x = np.ones([8, 5], np.float32)
        batch = dict(zip(second.graph.model.batch, [np.zeros([8], np.int32), x, x[:, 0]], strict=True))
        session.run(own, batch)
        changed = session.run("norm/moving_mean/Read/ReadVariableOp:0")
        assert not np.array_equal(changed, saved)
        copies.take(session)  # as in a session after another one that was lost
        np.testing.assert_array_equal(session.run("norm/moving_mean/Read/ReadVariableOp:0"), changed)
        copies.restored(partial(second.graph.fence.run, session, INCARNATION))
        copies.take(session)
        np.testing.assert_array_equal(session.run("norm/moving_mean/Read/ReadVariableOp:0"), saved)


@pytest.mark.long
def test_what_a_worker_keeps_outlives_its_graph() -> None:
    """Copies and residues are those of the worker, in each mode; restored variables make them new."""
    cluster, settings = LocalCluster(1), {"wire": "bfloat16", "wire_error_feedback": "on"}
    first = train(cluster, MODEL, 5, mode="async", **settings)
    kept = lasting_of(first)
    assert any(np.any(value) for name, value in kept.items() if "residue" in name)
    for mode in ("sync", "async"):
        other = train(cluster, MODEL, 0, mode=mode, **settings)
        found = lasting_of(other)
        assert found.keys() == kept.keys()
        for name, value in kept.items():
            np.testing.assert_array_equal(found[name], value, err_msg=f"{name} in mode {mode}")
    with cluster.session(other.graph.graph) as session:
        copies = other.graph.model.worker_copies
        copies.restored(partial(other.graph.fence.run, session, INCARNATION))
        copies.take(session)
    found = lasting_of(other)
    assert not any(np.any(value) for name, value in found.items() if "residue" in name)


def lasting_of(run: Run) -> dict[str, Any]:
    """What the worker keeps from session to session, by name; without the mark of what it took."""
    graph = run.graph.graph
    with graph.as_default(), run.cluster.session(graph) as session:
        variables = {v.op.name: v.read_value() for v in graph.get_collection(LASTING)}
        variables |= {name: graph.get_tensor_by_name(f"{name}/Read/ReadVariableOp:0") for name in NORM}
        found = session.run(variables)
    return {name: value for name, value in found.items() if not name.endswith("stamp_taken")}


@pytest.mark.long
def test_a_restored_job_goes_on_with_the_saved_averages(tmp_path: Any) -> None:
    whole = train(LocalCluster(1), MODEL, 8, checkpoint_dir=str(tmp_path / "whole"))
    train(LocalCluster(2), MODEL, 4, checkpoint_dir=str(tmp_path / "parts"))
    rest = train(LocalCluster(3), skipping(4), 4, checkpoint_dir=str(tmp_path / "parts"))
    assert rest.named("restored")
    for name in ("kernel", "norm/gamma", "norm/moving_mean", "norm/moving_variance"):
        np.testing.assert_array_equal(of_checkpoint(rest, name), of_checkpoint(whole, name), err_msg=name)


def skipping(batches: int) -> Any:
    model = model_of(norm_and_tables)
    return type(model)(model.name, lambda context: model.input_fn(context).skip(batches), model.model_fn)


@pytest.mark.long
def test_averages_that_are_not_finite_are_told_and_not_saved(tmp_path: Any) -> None:
    def spoilt(context: Context) -> Any:
        def at(number: Any, batch: Any) -> Any:
            features, labels = batch
            factor = tf1.where(tf1.equal(number, 4), np.nan, 1.0)
            return {**features, "x": features["x"] * factor}, labels

        return MODEL.input_fn(context).enumerate().map(at)

    model = type(MODEL)("tests.spoilt", spoilt, MODEL.model_fn)
    settings = {"checkpoint_dir": str(tmp_path), "on_nan": "continue", "save_steps": 3}
    run = train(LocalCluster(1), model, 8, **settings)
    (told,) = {facts["variables"] for facts in run.named("not_finite")}
    assert told == "norm/moving_mean norm/moving_variance"
    sound = train(LocalCluster(1), MODEL, 3, checkpoint_dir=str(tmp_path / "sound"))
    np.testing.assert_array_equal(of_checkpoint(run, "norm/moving_mean"), of_checkpoint(sound, "norm/moving_mean"))


def test_updates_that_no_step_runs_are_told() -> None:
    run = train(LocalCluster(1), model_of(lambda *batch: norm_and_tables(*batch, updates=[])), 1)
    assert run.graph.unmoved == ["norm/moving_mean", "norm/moving_variance"]


def test_evaluation_reads_the_averages_and_the_tables(tmp_path: Any) -> None:
    cluster = LocalCluster(2)
    run = train(cluster, MODEL, 5, checkpoint_dir=str(tmp_path))

    def in_evaluation(features: Any, labels: Any, mode: str) -> ModelSpec:
        return norm_and_tables(features["x"], labels, features["id"], training=False)

    def ten(context: Context) -> Any:
        return MODEL.input_fn(context).take(10)

    model = type(MODEL)("tests.table", ten, in_evaluation)
    measured: list[int] = []
    evaluation = PulledEvaluation(model, Context("eval", 0, 1, 8, "", 3), run.graph.plan, cluster.max_workers)
    with closing(cluster.session(evaluation.graph)) as session:
        values = evaluation.measure(session, lambda *_: measured.append(1))
    assert len(measured) == 10, "each is a sign that it gets on"
    saved = {name: of_checkpoint(run, name) for name in ("kernel", "scale", "table")}
    norm = {name: of_checkpoint(run, f"norm/{name}") for name in ("gamma", "beta", "moving_mean", "moving_variance")}
    with tf1.Graph().as_default(), tf1.Session() as session:
        batches = tf1.data.make_one_shot_iterator(ten(Context("eval", 0, 1, 8, "", 3))).get_next()
        losses = []
        for _ in range(10):
            features, labels = session.run(batches)
            deviation = np.sqrt(norm["moving_variance"] + 1e-3)
            normed = (features["x"] - norm["moving_mean"]) / deviation * norm["gamma"] + norm["beta"]
            predicted = (normed * saved["scale"] + saved["table"][features["id"]]) @ saved["kernel"]
            losses.append(np.mean((predicted[:, 0] - labels) ** 2))
    assert values["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_what_each_worker_changes_for_itself_is_named_and_moving_averages_are_not() -> None:
    def build(x: Any, y: Any, ids: Any) -> ModelSpec:
        normed = tf1.layers.batch_normalization(x, training=True, name="norm")
        zeros = {"initializer": tf1.zeros_initializer(), "trainable": False}
        counts = tf1.get_variable("counts", [7], **zeros)
        total = tf1.get_variable("total", [], aggregation=tf1.VariableAggregation.SUM, **zeros)
        kernel = get("kernel", [5, 1])
        loss = linear(normed, kernel, y)
        average = tf1.train.ExponentialMovingAverage(0.5).apply([kernel])
        changes = [tf1.scatter_add(counts, ids, tf1.ones_like(y)), total.assign_add(1.0), average]
        updates = [*tf1.get_collection(tf1.GraphKeys.UPDATE_OPS), *changes]
        return ModelSpec(loss, tf1.train.GradientDescentOptimizer, 1e-4, updates=updates)

    graph = train(LocalCluster(1), model_of(build), 1).graph
    assert len(graph.model.worker_copies.changed) == 4
    logged: dict[str, Any] = {}
    log_plan(graph, True, lambda event, **facts: logged.update({event: facts}))
    assert logged["own_copies"]["variables"] == "counts"
