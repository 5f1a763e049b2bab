"""Checkpoints of stock TensorFlow are restored here, and ours there; training goes on as if it had never moved."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.errors import CheckpointError
from psruntime.model import Model, ModelSpec
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.local_cluster import LocalCluster, linear_model, train
from tests.support.selection import long_but
from tests.support.small_models import get, linear, model_of
from tests.support.stock import Stock, contents

STEPS = 4
SLICED = {"slice_bytes": 160}


def repeating(optimizer: Any) -> Model:
    """The linear model on STEPS batches again and again, so that every STEPS steps are on the same ones."""
    model = linear_model(optimizer)
    return replace(model, input_fn=lambda context: model.input_fn(context).take(STEPS))


ADAM = repeating(OPTIMIZERS["adam"])


def same(ours: dict[str, Any], stock: dict[str, Any]) -> None:
    """All that stock has, within 1e-6."""
    for name, value in stock.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("optimizer", long_but(["adam"], sorted(OPTIMIZERS)))
def test_to_ours_and_back(optimizer: str, tmp_path: Any) -> None:
    model, folder = repeating(OPTIMIZERS[optimizer]), str(tmp_path / "run")
    there = Stock(model).initialise().train(STEPS)
    there.save(folder, STEPS)
    ours = train(LocalCluster(2), model, STEPS, checkpoint_dir=folder, **SLICED)
    assert ours.control_plane.prepared_at == [STEPS]
    unbroken = contents(there.train(STEPS).save(tmp_path / "unbroken", 2 * STEPS))
    same(contents(ours.checkpoints.latest()), unbroken)
    back = Stock(model).restore(ours.checkpoints.latest()).train(STEPS).save(tmp_path / "back", 3 * STEPS)
    unbroken = contents(there.train(STEPS).save(tmp_path / "unbroken", 3 * STEPS))
    assert contents(back).keys() == unbroken.keys()
    same(contents(back), unbroken)


@pytest.mark.long
@pytest.mark.parametrize("sharded", [False, True])
def test_from_and_to_two_ps(sharded: bool, tmp_path: Any) -> None:
    """Stock's replica_device_setter spreads the variables over its two ps, Adam's powers are on one of them."""
    folder, cluster = str(tmp_path / "run"), LocalCluster(2)
    spec = {"ps": [entry.address for entry in cluster.view.ps], "worker": [cluster.address]}
    stock = {"device": tf1.train.replica_device_setter(cluster=spec), "session": cluster.session, "sharded": sharded}
    there = Stock(ADAM, **stock).initialise().train(STEPS)
    there.save(folder, STEPS)
    twice, thrice = (there.train(STEPS).save(tmp_path / "unbroken", n * STEPS) for n in (2, 3))
    ours = train(LocalCluster(3), ADAM, STEPS, checkpoint_dir=folder, **SLICED)
    same(contents(ours.checkpoints.latest()), contents(twice))
    there.initialise().restore(ours.checkpoints.latest()).train(STEPS)
    same(contents(there.save(tmp_path / "back", 3 * STEPS)), contents(thrice))


WAYS: list[dict[str, Any]] = [{"partitions": 3}, {"scope": "train/more"}, {"with_step": False}]


@pytest.mark.long
@pytest.mark.parametrize("made", WAYS, ids=str)
def test_other_ways_to_make_them(made: dict[str, Any], tmp_path: Any) -> None:
    """Variables in slices; an optimizer in a scope, which goes before its names; no global step."""
    there = Stock(ADAM, **made).initialise().train(STEPS)
    there.save(tmp_path / "run", STEPS)
    before = contents(str(tmp_path / "run" / f"stock.ckpt-{STEPS}"))
    ours = train(LocalCluster(2), ADAM, STEPS, checkpoint_dir=str(tmp_path / "run"), **SLICED)
    assert ours.control_plane.prepared_at == [STEPS]
    assert before["hidden/kernel"].shape == (5, 16)
    after = contents(there.train(STEPS).save(tmp_path / "unbroken", 2 * STEPS))
    scope = f"{made['scope']}/" if "scope" in made else ""
    same(contents(ours.checkpoints.latest()), {name.removeprefix(scope): value for name, value in after.items()})


def test_the_slots_of_another_optimizer_are_missed_by_name(tmp_path: Any) -> None:
    Stock(repeating(OPTIMIZERS["momentum"])).initialise().save(tmp_path, 0)
    with pytest.raises(CheckpointError, match=r"hidden/kernel/Adam is missing there, float32\[5, 16\] in the model"):
        train(LocalCluster(1), ADAM, 1, checkpoint_dir=str(tmp_path))


@pytest.mark.long
def test_through_three_layouts_to_the_bit(tmp_path: Any) -> None:
    """2 ps, 3 ps, 1 ps, with slices of every size, against one that never stopped."""
    unbroken = train(LocalCluster(1), ADAM, 3 * STEPS, checkpoint_dir=str(tmp_path / "unbroken"))
    for num_ps, slice_bytes in ((2, 64), (3, 128), (1, 1 << 24)):
        folder = str(tmp_path / "moved")
        moved = train(LocalCluster(num_ps), ADAM, STEPS, slice_bytes=slice_bytes, checkpoint_dir=folder)
        assert len(moved.graph.plan.pieces_of("hidden/kernel")) == {64: 5, 128: 3, 1 << 24: 1}[slice_bytes]
    expected, found = contents(unbroken.checkpoints.latest()), contents(moved.checkpoints.latest())
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.long
def test_two_optimizers_of_a_kind_have_the_powers_that_stock_gives_them(tmp_path: Any) -> None:
    def build(x: Any, y: Any, _: Any) -> ModelSpec:
        scale = tf1.get_variable("a/scale", initializer=1.0, constraint=lambda v: tf1.maximum(v, 0.0))  # a whole scalar
        loss = linear(x * scale, get("b/kernel", [5, 1]), y)
        adam = tf1.train.AdamOptimizer
        return ModelSpec(loss, {"a/*": partial(adam, beta1=0.75), "*": partial(adam, beta1=0.5)}, 0.01)

    run = train(LocalCluster(2), model_of(build), 3, checkpoint_dir=str(tmp_path))
    reader = tf1.train.load_checkpoint(run.checkpoints.latest())
    powers = {name: float(reader.get_tensor(name)) for name in ("beta1_power", "beta1_power_1")}
    assert powers == {"beta1_power": 0.75**4, "beta1_power_1": 0.5**4}
    assert reader.get_tensor("a/scale/Adam").shape == ()
