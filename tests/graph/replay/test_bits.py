"""Rounds of one worker on two ps are the same to the bit in plain TensorFlow, for every kind of model and optimizer;
tests/graph/step/test_joint_rounds.py has those of two workers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.model import Model
from psruntime.optimizers import GroupFtrl, LazyAdam, RowwiseAdagrad
from tests.graph.model.table_models import TABLE
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.embedding_model import embedding_model
from tests.support.local_cluster import LocalCluster, linear_model, train
from tests.support.repeated import differing, rounds_of_one
from tests.support.selection import long_but
from tests.support.small_models import model_of

pytestmark = pytest.mark.optimised

ROUNDS = 6
QUICK = ["variable that is not used"]
OTHERS = {
    "adadelta": tf1.train.AdadeltaOptimizer,
    "proximal adagrad": tf1.train.ProximalAdagradOptimizer,
    "proximal gradient descent": tf1.train.ProximalGradientDescentOptimizer,
    "centered rmsprop": partial(tf1.train.RMSPropOptimizer, momentum=0.9, centered=True),
    "lazy adam": LazyAdam,
}
BY_ROW = {"row-wise adagrad": RowwiseAdagrad, "group ftrl": GroupFtrl}


def assert_same(model: Model, folder: str, **settings: Any) -> None:
    run = train(LocalCluster(2), model, ROUNDS, checkpoint_dir=folder, mode="sync", **settings)
    rounds = rounds_of_one(model, ROUNDS, settings.get("local_steps", 1))
    assert differing(model, run.graph.plan, rounds, folder) == {}


@pytest.mark.parametrize("way", long_but(QUICK, TABLE))
def test_of_every_way_to_make_and_read_variables(way: str, tmp_path: Any) -> None:
    assert_same(model_of(TABLE[way]), str(tmp_path), slice_bytes=16)


@pytest.mark.long
def test_of_frozen_variables_whose_values_are_in_the_checkpoint(tmp_path: Any) -> None:
    """A random projection, of which each process would draw another one."""

    def frozen(x: Any, y: Any, _: Any) -> Any:
        projection = tf1.get_variable(
            "projection", [5, 4], initializer=tf1.random_normal_initializer(), trainable=False
        )
        kernel = tf1.get_variable("kernel", [4, 1], initializer=tf1.ones_initializer())
        return tf1.reduce_mean(tf1.square(tf1.matmul(tf1.matmul(x, projection), kernel)[:, 0] - y))

    assert_same(model_of(frozen), str(tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, *OTHERS])
def test_of_dense_variables_in_slices(optimizer: str, tmp_path: Any) -> None:
    assert_same(linear_model({**OPTIMIZERS, **OTHERS}[optimizer], 0.02), str(tmp_path), slice_bytes=64)


@pytest.mark.long  # quick: cluster/test_rounds.py, a table and two mini-batches a step
@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, *OTHERS, *BY_ROW])
def test_of_tables_that_are_looked_up_twice(optimizer: str, tmp_path: Any) -> None:
    """Within clip_norm, of two mini-batches a step."""
    make = {**OPTIMIZERS, **OTHERS, **BY_ROW}[optimizer]
    assert_same(embedding_model(make, 0.05, clip_norm=0.5), str(tmp_path), local_steps=2)
