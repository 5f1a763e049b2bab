"""Packed buckets: which variables share one, and that training, checkpoints and initial values do not know of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.config.job_settings import PLANS
from psruntime.graph.model.variable_reads import parted
from psruntime.model import Model, ModelSpec
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.local_cluster import LocalCluster, linear_model, train
from tests.support.selection import long_but


class Scaled(tf1.train.GradientDescentOptimizer):  # type: ignore[misc]
    """Not known to be element-wise: it is a class of the user's."""


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.parametrize("mode", long_but(["async"], ["async", "sync"]))
@pytest.mark.parametrize("optimizer", long_but(["adam"], ["adam", "ftrl"]))
def test_packed_and_apart_are_equal_to_the_bit(optimizer: str, mode: str, tmp_path: Path) -> None:
    model, ends = linear_model(OPTIMIZERS[optimizer]), []
    for plan in PLANS:
        run = train(LocalCluster(1), model, 6, mode=mode, plan=plan, checkpoint_dir=str(tmp_path / plan))
        assert len(run.graph.plan.buckets) == {"packed": 1, "per-variable": 3}[plan]
        ends.append(run.saved())
    assert_same(*ends)


@pytest.mark.long
@pytest.mark.parametrize("plans", [PLANS, PLANS[::-1]])
def test_a_checkpoint_goes_from_each_plan_to_the_other(plans: tuple[str, str], tmp_path: Path) -> None:
    model = linear_model(OPTIMIZERS["adam"])
    unbroken = train(LocalCluster(1), model, 6, checkpoint_dir=str(tmp_path / "unbroken"))
    folder = str(tmp_path / "moved")
    train(LocalCluster(2), model, 3, plan=plans[0], checkpoint_dir=folder)
    moved = train(LocalCluster(1), Model(model.name, skipping(model, 3), model.model_fn), 3, plan=plans[1],
                  checkpoint_dir=folder)  # fmt: skip
    assert moved.control_plane.prepared_at == [3]
    assert_same(unbroken.saved(), moved.saved())


def skipping(model: Model, batches: int) -> Any:
    return lambda context: model.input_fn(context).skip(batches)


@pytest.mark.long
def test_slices_that_share_buckets_with_others_are_put_together_in_order(tmp_path: Path) -> None:
    """Slices of 64 bytes are packed with what is small beside them, on both ps."""
    model, ends = linear_model(OPTIMIZERS["adam"]), []
    for plan, slice_bytes in [("packed", 64), ("per-variable", 1 << 24)]:
        run = train(LocalCluster(2), model, 4, plan=plan, slice_bytes=slice_bytes, checkpoint_dir=str(tmp_path / plan))
        ends.append(run.saved())
    assert_same(*ends)


def mixed(features: Any, labels: Any, _: str) -> ModelSpec:
    def get(name: str, shape: list[int], **more: Any) -> Any:
        return tf1.get_variable(name, shape, initializer=tf1.glorot_uniform_initializer(seed=1), **more)

    a, b, limited = get("a", [5, 4]), get("b", [4, 1]), get("limited", [5], constraint=lambda v: tf1.clip_by_norm(v, 1))
    slow, whole, double = get("slow/a", [5]), get("whole/a", [5]), get("double", [5], dtype=tf1.float64)
    slower = get("slow/b", [5])
    get("unused", [3])
    prediction = tf1.matmul(tf1.matmul(features, a), b)[:, 0]
    for vector in (limited, slow, slower, whole, tf1.cast(double, tf1.float32)):
        prediction += tf1.linalg.matvec(features, vector)
    optimizers = {"slow/*": tf1.train.AdamOptimizer, "whole/*": Scaled, "*": tf1.train.GradientDescentOptimizer}
    return ModelSpec(tf1.reduce_mean(tf1.square(prediction - labels)), optimizers, 0.1)


@pytest.mark.long
def test_only_what_is_updated_alike_shares_a_bucket() -> None:
    """One optimizer, one dtype, a gradient, no constraint, and an optimizer that is known to be element-wise."""
    run = train(LocalCluster(1), Model("mixed", linear_model(None).input_fn, mixed), 1)
    together = [[piece.variable for piece in bucket.pieces] for bucket in run.graph.plan.buckets]
    assert together == [["a", "b"], ["limited"], ["slow/a", "slow/b"], ["whole/a"], ["double"], ["unused"]]
    assert run.graph.untrained == ["unused"] and run.results[0].dropped == 0


def depending(features: Any, labels: Any, _: str) -> ModelSpec:
    first = tf1.get_variable("first", [5], initializer=tf1.random_normal_initializer())
    second = tf1.get_variable("second", initializer=2 * first.initialized_value())
    third = tf1.get_variable("third", initializer=second.initialized_value() + 1)
    prediction = tf1.linalg.matvec(features, first * second * third)
    return ModelSpec(tf1.reduce_mean(tf1.square(prediction - labels)), tf1.train.AdamOptimizer, 0.1)


def test_initial_values_that_depend_on_another_variable_of_the_bucket(tmp_path: Path) -> None:
    model = Model("depending", linear_model(None).input_fn, depending)
    values = train(LocalCluster(1), model, 0, checkpoint_dir=str(tmp_path)).saved()
    assert np.any(values["first"])
    np.testing.assert_array_equal(values["second"], 2 * values["first"])
    np.testing.assert_array_equal(values["third"], values["second"] + 1)


@pytest.mark.parametrize("sizes, shares", [([160, 320, 16], True), ([160, 320, 5, 18], True), ([159, 319], False)])
def test_parts_of_whole_rows_share_the_memory_of_their_bucket(sizes: list[int], shares: bool) -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        bucket = tf1.random.uniform([sum(sizes)], name="bucket")
        parts = [tf1.reshape(part, [-1]) for part in parted(bucket, sizes)]
        traced = tf1.RunMetadata()
        options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        values, whole = session.run(([part + 0.0 for part in parts], bucket), options=options, run_metadata=traced)
    np.testing.assert_array_equal(np.concatenate(values), whole)
    held = {
        node.node_name: {output.tensor_description.allocation_description.ptr for output in node.output}
        for device in traced.step_stats.dev_stats
        for node in device.node_stats
    }
    assert (held["split"] == held["bucket/RandomUniform"]) == shares
