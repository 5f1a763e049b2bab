"""Towers: a step on several devices equals one device on the joint batch, and computes on each of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.config.process import device_names
from psruntime.errors import UsageError
from psruntime.graph.base.server import worker_device
from psruntime.graph.model.gradients import ONE_TOWER, Towers, find_towers
from psruntime.model import Model, ModelSpec
from tests.graph.model.table_models import TABLE
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.embedding_model import embedding_model
from tests.support.local_cluster import LocalCluster, linear_model, train
from tests.support.selection import long_but
from tests.support.small_models import model_of

pytestmark = pytest.mark.optimised

STEPS, BATCH = 4, 8
TWO = Towers(("cpu:0", "cpu:1"))
MODELS = {"dense": linear_model(OPTIMIZERS["adam"], 0.02), "tables": embedding_model(OPTIMIZERS["adagrad"], 0.05)}
MODES: dict[str, dict[str, Any]] = {
    "sync": {"mode": "sync"},
    "async": {"mode": "async"},
    "bounded": {"mode": "bounded", "bound": 4},
    "local steps": {"mode": "sync", "local_steps": 2},
}


@pytest.mark.parametrize("mode", long_but(["sync"], MODES))
@pytest.mark.parametrize("kind", long_but(["dense"], MODELS))
def test_two_devices_equal_one_on_the_joint_batch(kind: str, mode: str, tmp_path: Any) -> None:
    settings = MODES[mode]
    saved = {}
    for name, cpus, towers, size in [("two", 2, TWO, BATCH), ("one", 1, ONE_TOWER, 2 * BATCH)]:
        folder = str(tmp_path / name)
        cluster = LocalCluster(2, cpus=cpus)
        run = train(cluster, MODELS[kind], STEPS, towers=towers, batch_size=size, checkpoint_dir=folder, **settings)
        saved[name] = run.saved()
        assert {result.examples for result in run.results} == {2 * BATCH * settings.get("local_steps", 1)}
    assert saved["two"].keys() == saved["one"].keys()
    for name, value in saved["one"].items():
        np.testing.assert_allclose(saved["two"][name], value, rtol=1e-5, atol=1e-5, err_msg=name)


def averaging() -> Model:
    """A model that moves an average `m` by the mean of each batch, and adds the average before that to `seen`."""
    linear = linear_model(OPTIMIZERS["sgd"])

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        names = ("m", "seen")
        m, seen = (tf1.get_variable(n, [], initializer=tf1.zeros_initializer(), trainable=False) for n in names)
        before = m.read_value()
        with tf1.control_dependencies([before]):
            moved = m.assign_sub((before - tf1.reduce_mean(features)) * 0.5)
        return replace(linear.model_fn(features, labels, mode), updates=[moved, seen.assign_add(before)])

    return replace(linear, model_fn=model_fn)


ALIKE = {
    "averages": averaging(),
    **{way: model_of(TABLE[way]) for way in ("moving averages", "while v1", "lookup in a while v2", "cond v1")},
}


@pytest.mark.long
@pytest.mark.parametrize("kind", long_but(["averages"], ALIKE))
def test_two_devices_equal_local_steps(kind: str, tmp_path: Any) -> None:
    """Also what updates do: for the second mini-batch they begin at what the first has left."""
    saved = {}
    for name, cpus, towers, settings in [("two", 2, TWO, {}), ("one", 1, ONE_TOWER, {"local_steps": 2})]:
        cluster, folder = LocalCluster(1, cpus=cpus), str(tmp_path / name)
        saved[name] = train(cluster, ALIKE[kind], STEPS, towers=towers, checkpoint_dir=folder, **settings).saved()
    for name, value in saved["one"].items():
        np.testing.assert_allclose(saved["two"][name], value, rtol=1e-6, atol=1e-6, err_msg=name)
    assert "seen" not in saved["two"] or saved["two"]["seen"] > 0


def test_each_tower_computes_on_its_device() -> None:
    run = train(LocalCluster(1, cpus=2), linear_model(OPTIMIZERS["sgd"]), 1, towers=TWO)
    places = {op.device for op in run.graph.graph.get_operations() if op.type == "Tanh"}
    assert places == {f"{worker_device(0)}/device:CPU:{number}" for number in (0, 1)}
    backward = {op.device for op in run.graph.graph.get_operations() if op.type == "TanhGrad"}
    assert backward == places
    uses = [op for op in run.graph.graph.get_operations() if any(t.dtype == tf1.resource for t in op.inputs)]
    assert not [op.name for op in uses if op.device.endswith("CPU:1")], "a variable is used from another device"


def test_the_names_of_devices() -> None:
    assert device_names("") == ()
    assert device_names("cpu:0, CPU:1") == ("cpu:0", "cpu:1")
    assert device_names("gpu:all") == ("gpu:all",)
    for wrong, why in [
        ("gpu", "must be cpu:N or gpu:N"),
        ("cpu:01", "must be cpu:N or gpu:N"),
        ("gpu:all,cpu:0", "got 'gpu:all'"),
        ("cpu:0,", "got ''"),
        ("cpu:1,cpu:1", "names cpu:1 twice"),
        ("cpu:64", "goes up to cpu:63"),
    ]:
        with pytest.raises(UsageError, match=why):
            device_names(wrong)


def test_a_gpu_that_is_not_there() -> None:
    assert find_towers(("cpu:0", "cpu:3")) == Towers(("cpu:0", "cpu:3"))
    assert Towers(("cpu:0", "cpu:3")).cpus == 4
    gpus = len(tf1.config.list_physical_devices("GPU"))
    with pytest.raises(UsageError, match=r"--devices gpu:\d+: TensorFlow finds"):
        find_towers((f"gpu:{gpus}",))
