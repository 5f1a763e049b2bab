"""The same seeds in model_fn give other numbers on every worker, and the same initial values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.graph.base.graphs import WorkerGraph
from psruntime.graph.model.capture import substitute
from psruntime.graph.model.variable_reads import PulledRead


def draws(index: int, graph_seed: int | None, op_seed: int | None) -> tuple[Any, Any]:
    """(what the model draws, its initial value) on worker `index`."""
    with WorkerGraph(index).as_default() as graph:
        step = PulledRead(tf1.constant(0, tf1.int64))
        with substitute({"v": PulledRead(tf1.zeros([4]))}, step) as captured:
            if graph_seed is not None:
                tf1.set_random_seed(graph_seed)
            variable = tf1.get_variable("v", [4], initializer=tf1.random_uniform_initializer(seed=5))
            masked = tf1.nn.dropout(tf1.ones([64]) + variable[0], rate=0.5, seed=op_seed)
            in_branch = tf1.cond(
                tf1.constant(True), lambda: tf1.random.uniform([64], seed=op_seed), lambda: tf1.zeros([64])
            )
        with tf1.Session(graph=graph) as session:
            return session.run([[masked, in_branch], captured.initial_values["v"]])


@pytest.mark.parametrize("graph_seed", [None, 7])
def test_workers_draw_different_numbers_and_the_same_initial_values(graph_seed: int | None) -> None:
    (first, initial), (second, same), (third, _) = [draws(i, graph_seed, 3) for i in range(3)]
    again, _ = draws(1, graph_seed, 3)
    np.testing.assert_array_equal(initial, same)
    np.testing.assert_array_equal(second, again)
    for i in range(2):
        assert not np.array_equal(first[i], second[i])
        assert not np.array_equal(second[i], third[i])


@pytest.mark.parametrize("graph_seed", [None, 7])
def test_worker_0_draws_what_plain_tensorflow_draws(graph_seed: int | None) -> None:
    with tf1.Graph().as_default() as graph:
        if graph_seed is not None:
            tf1.set_random_seed(graph_seed)
        plain = tf1.random.uniform([64], seed=3)
        with tf1.Session(graph=graph) as session:
            expected = session.run(plain)
    np.testing.assert_array_equal(draws(0, graph_seed, 3)[0][1], expected)
