"""What the identity of a script is made of: all by which two of them with the same variables would train otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.classic.counting import StepCounting
from psruntime.classic.identity import identity_of_checkpoint, identity_of_script
from psruntime.core.plan.identity import VERSIONS, ModelIdentity, differences
from tests.support.selection import long_but

Optimizers = Callable[[Any], Any]  # what makes one, of the global step


def adam(rate: float = 0.01, **others: Any) -> Optimizers:
    return lambda _: tf1.train.AdamOptimizer(rate, **others)


def decayed(steps: int) -> Optimizers:
    return lambda step: tf1.train.MomentumOptimizer(tf1.train.exponential_decay(0.1, step, steps, 0.5), 0.9)


def stepwise(last: float) -> Optimizers:
    return lambda step: tf1.train.MomentumOptimizer(tf1.train.piecewise_constant(step, [10, 20], [0.1, 0.2, last]), 0.9)


def build(
    optimizer: Optimizers | None = None, clip_norm: float = 0.0, size: int = 3, of_table: Optimizers | None = None,
    batch: int = 8, worker: int = 0, resource: bool = False,
) -> StepCounting:  # fmt: skip
    """A script's graph with a dense variable `w` and a table `rows`; of_table: another optimizer for that."""
    with tf1.device(tf1.train.replica_device_setter(ps_tasks=2, worker_device=f"/job:worker/task:{worker}")):
        w = tf1.get_variable("w", [size], use_resource=resource)
        table = tf1.get_variable("rows", [5, 2], use_resource=resource)
        given = tf1.random.uniform([batch, 2]) * (worker + 1.0)
        loss = tf1.reduce_mean(given * tf1.nn.embedding_lookup(table, [1] * batch)) + tf1.reduce_sum(w**2)
        step = tf1.train.get_or_create_global_step()
        made = (optimizer or adam())(step)
        gradients = made.compute_gradients(loss, None if of_table is None else [w])
        if clip_norm:
            clipped, _ = tf1.clip_by_global_norm([gradient for gradient, _ in gradients], clip_norm)
            gradients = list(zip(clipped, [variable for _, variable in gradients], strict=True))
        if of_table is not None:
            with tf1.control_dependencies([of_table(step).minimize(loss, var_list=[table])]):
                made.apply_gradients(gradients, global_step=step)
        else:
            made.apply_gradients(gradients, global_step=step)
        for name, kind in ("mine", tf1.GraphKeys.LOCAL_VARIABLES), ("copy", tf1.GraphKeys.GLOBAL_VARIABLES):
            with tf1.device(f"/job:worker/task:{worker}" if name == "copy" else None):
                own = tf1.get_variable(f"{name}_{worker}", [1], collections=[kind], trainable=True)
                with tf1.control_dependencies([own.assign([worker * 2.0])]):
                    tf1.train.GradientDescentOptimizer(0.1 * worker).minimize(tf1.reduce_sum(own), var_list=[own])
        if worker == 0:
            w.assign(tf1.zeros([size]))  # the chief's alone, and no step
    return StepCounting(tf1.get_default_graph())


def identity(**settings: Any) -> ModelIdentity:
    with tf1.Graph().as_default() as graph:
        return identity_of_script(graph, build(**settings).counters)


DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "optimizer of w: ApplyGradientDescent, where the job has ApplyAdam": (
        {"optimizer": lambda _: tf1.train.GradientDescentOptimizer(0.01), "size": 3}, {},
    ),
    "optimizer ApplyAdam of w, lr: 0.02, where the job has 0.01": ({"optimizer": adam(0.02)}, {}),
    "optimizer ApplyAdam of w, beta1: 0.8, where the job has 0.9": ({"optimizer": adam(beta1=0.8)}, {}),
    "optimizer ApplyMomentum of w, lr: Mul(0.1, Pow(0.5, RealDiv(VarHandleOp(), 20.0)))": (
        {"optimizer": decayed(20)}, {"optimizer": decayed(10)},
    ),
    "optimizer ApplyMomentum of w, lr: StatelessIf(": ({"optimizer": stepwise(0.3)}, {"optimizer": stepwise(0.4)}),
    "gradient of w for ApplyAdam: Mul(gradient, ": ({"clip_norm": 1.0}, {}),
    "gradient of w for ApplyAdam: Mul(gradient, AddV2(Mul(1.0, Minimum(": ({"clip_norm": 1.0}, {"clip_norm": 2.0}),
    "variable w: float32[4], where the job has float32[3]": ({"size": 4}, {}),
    "variable w/Momentum: none, where the job has float32[3]": (
        {"optimizer": lambda _: tf1.train.GradientDescentOptimizer(0.1)}, {"optimizer": decayed(10)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", DIFFERENT)
def test_what_differs_is_named_with_both_values(said: str) -> None:
    ours, theirs = DIFFERENT[said]
    found = list(differences(identity(**ours), identity(**theirs), "the job"))
    assert any(each.startswith(said) for each in found), found


@pytest.mark.long
@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("argument", ["rate", "beta1", "epsilon"])
def test_each_constant_of_a_table_that_is_updated_row_by_row(argument: str, resource: bool) -> None:
    """TensorFlow has no operation for a sparse Adam: it composes one."""
    alone = {"optimizer": lambda _: tf1.train.GradientDescentOptimizer(0.1), "resource": resource}
    ours, theirs = (identity(of_table=adam(**{argument: value}), **alone) for value in (0.5, 0.25))
    (first, *_) = differences(ours, theirs, "the job")
    assert first.startswith("optimizer ") and " of rows, " in first and "0.5" in first, first


@pytest.mark.parametrize("resource", long_but([True], [False, True]))
def test_what_workers_may_do_otherwise(resource: bool) -> None:
    for settings in ({}, {"clip_norm": 1.0}, {"optimizer": decayed(10)}, {"optimizer": stepwise(0.3)}):
        chief = identity(resource=resource, **settings)
        assert chief.facts == identity(resource=resource, worker=1, batch=16, **settings).facts


@pytest.mark.parametrize("resource", [False, True])
def test_a_checkpoint_has_the_identity_of_the_script_that_wrote_it(resource: bool, tmp_path: Path) -> None:
    with tf1.Graph().as_default() as graph:
        counting = build(clip_norm=1.0, of_table=adam(0.5), resource=resource)
        ours = identity_of_script(graph, counting.counters)
        tf1.train.Saver().export_meta_graph(f"{tmp_path}/model.ckpt-1.meta")
    there = identity_of_checkpoint(f"{tmp_path}/model.ckpt-1")
    assert there is not None and len(there.facts) > 10
    assert dict(there.facts).items() <= dict(ours.facts).items()
    assert {name for name, _ in ours.facts} - {name for name, _ in there.facts} <= {*VERSIONS, "protocol"}


def test_a_checkpoint_without_a_graph_has_none(tmp_path: Path) -> None:
    assert identity_of_checkpoint(f"{tmp_path}/model.ckpt-1") is None
    (tmp_path / "model.ckpt-1.meta").write_bytes(b"no graph")
    assert identity_of_checkpoint(f"{tmp_path}/model.ckpt-1") is None
