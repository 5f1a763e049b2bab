"""Capture: every way to read a trainable variable gives the pulled value.

These tests are also the alarm for the private attributes that capture takes: each reads a variable whose
own handle is never initialised, so a read that went to it would fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import VariableSpec
from psruntime.errors import UsageError
from psruntime.graph.model.capture import record, substitute
from psruntime.graph.model.variable_reads import PulledRead, VariableRead
from tests.support.control_flow import control_flow

VALUE = np.arange(6, dtype=np.float32).reshape(3, 2)
NAME = "scope/v"


def make() -> Any:
    with tf1.variable_scope("scope", reuse=tf1.AUTO_REUSE):
        return tf1.get_variable("v", [3, 2], initializer=tf1.zeros_initializer())


def in_while(v: Any) -> Any:
    _, total = tf1.while_loop(lambda i, _: i < 3, lambda i, t: (i + 1, t + v), [0, tf1.zeros([3, 2])])
    return total


def learn(build: Callable[[], Any]) -> tuple[VariableSpec, ...]:
    return record(build, lambda _: ()).specs


def substituted(views: Mapping[str, VariableRead]) -> Any:
    return substitute(views, PulledRead(tf1.constant(7, tf1.int64)))


READS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "conversion": (lambda v: v * 2.0, VALUE * 2),
    "value()": (lambda v: v.value(), VALUE),
    "read_value()": (lambda v: v.read_value(), VALUE),
    "identity": (tf1.identity, VALUE),
    "slice": (lambda v: v[1:], VALUE[1:]),
    "gather": (lambda v: tf1.gather(v, [2, 0]), VALUE[[2, 0]]),
    "gather along axis 1": (lambda v: tf1.gather(v, [1], axis=1), VALUE[:, [1]]),
    "embedding_lookup": (lambda v: tf1.nn.embedding_lookup(v, [2, 2]), VALUE[[2, 2]]),
    "gather_nd": (lambda v: tf1.gather_nd(v, [[2, 1]]), VALUE[2, 1:]),
    "sparse_read": (lambda v: v.sparse_read([1]), VALUE[[1]]),
    "matmul": (lambda v: tf1.matmul(tf1.ones([1, 3]), v), VALUE.sum(axis=0, keepdims=True)),
    "cond": (lambda v: tf1.cond(tf1.constant(True), lambda: v + 1.0, lambda: v - 1.0), VALUE + 1),
    "while": (in_while, VALUE * 3),
    "reuse": (lambda v: v + make(), VALUE * 2),
}


@pytest.mark.parametrize("way", READS)
@pytest.mark.parametrize("v2", [False, True])
def test_every_read_gives_the_view(way: str, v2: bool) -> None:
    read, expected = READS[way]
    with control_flow(v2), tf1.Graph().as_default() as graph:
        view = tf1.placeholder(tf1.float32, [3, 2])
        with substituted({NAME: PulledRead(view)}):
            result = read(make())
            (gradient,) = tf1.gradients(result, [view])
        with tf1.Session(graph=graph) as session:
            np.testing.assert_array_equal(session.run(result, {view: VALUE}), expected)
        assert gradient is not None


def test_a_fetch_of_the_variable_itself_gives_the_view() -> None:
    with tf1.Graph().as_default() as graph:
        view = tf1.placeholder(tf1.float32, [3, 2])
        with substituted({NAME: PulledRead(view)}):
            variable = make()
        with tf1.Session(graph=graph) as session:
            np.testing.assert_array_equal(session.run(variable, {view: VALUE}), VALUE)
            assert session.run(tf1.is_variable_initialized(variable))


def test_record_learns_names_shapes_and_dtypes_in_order() -> None:
    def build() -> None:
        with tf1.variable_scope("a"):
            tf1.get_variable("w", [2, 3])
        tf1.Variable(tf1.zeros([4], tf1.float64), name="b")
        tf1.get_variable("bfloat", [], dtype=tf1.bfloat16, initializer=tf1.zeros_initializer())
        make()
        make()  # reused, so counted once
        tf1.metrics.mean(tf1.constant(1.0))  # local variables stay on the worker

    assert learn(build) == (
        VariableSpec("a/w", (2, 3), "float32"),
        VariableSpec("b", (4,), "float64"),
        VariableSpec("bfloat", (), "bfloat16"),
        VariableSpec("scope/v", (3, 2), "float32"),
    )


def test_keras_layers_are_captured() -> None:
    import tf_keras

    def build(features: Any) -> Any:
        return tf_keras.layers.Dense(2, name="head")(features)

    specs = learn(lambda: build(tf1.zeros([1, 3])))
    assert specs == (VariableSpec("head/kernel", (3, 2), "float32"), VariableSpec("head/bias", (2,), "float32"))
    with tf1.Graph().as_default() as graph, substituted({s.name: PulledRead(tf1.ones(s.shape)) for s in specs}):
        result = build(tf1.ones([1, 3]))
        with tf1.Session(graph=graph) as session:
            np.testing.assert_array_equal(session.run(result), [[4, 4]])


def test_initial_values_come_from_the_models_own_initializers() -> None:
    with tf1.Graph().as_default() as graph, substituted({"v": PulledRead(tf1.zeros([2]))}) as captured:
        tf1.get_variable("v", initializer=tf1.constant([3.0, 4.0]))
    with tf1.Session(graph=graph) as session:
        assert session.run(captured.initial_values["v"]).tolist() == [3.0, 4.0]


def test_handles_that_are_never_initialised_are_not_global_variables() -> None:
    with tf1.Graph().as_default() as graph, substituted({NAME: PulledRead(tf1.zeros([3, 2]))}):
        variable = make()
        assert tf1.global_variables(), "model_fn itself finds them"
    assert [v is variable for v in graph.get_collection(tf1.GraphKeys.TRAINABLE_VARIABLES)] == [True]
    assert not graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub", "scatter_update", "scatter_nd_add"])
def test_assigning_to_a_trainable_variable_is_refused_by_name(method: str) -> None:
    with tf1.Graph().as_default(), substituted({NAME: PulledRead(tf1.zeros([3, 2]))}):
        variable = make()
        with pytest.raises(UsageError, match=r"assigns to variable scope/v"):
            getattr(variable, method)(tf1.ones([3, 2]))


REFUSED = {
    "counter is not trainable and in no collection": lambda: tf1.get_variable(
        "counter", [], trainable=False, collections=[]
    ),
    "text has dtype string; a global one needs": lambda: tf1.Variable(["a"], trainable=False, name="text"),
    "ids has dtype int32": lambda: tf1.Variable([1, 2], name="ids"),
    "open has shape": lambda: tf1.Variable(tf1.placeholder(tf1.float32, [None]), name="open", validate_shape=False),
}


@pytest.mark.parametrize("complaint", REFUSED)
def test_variables_that_cannot_be_trained_are_refused_by_name(complaint: str) -> None:
    with pytest.raises(UsageError, match=f"variable {complaint}"):
        learn(REFUSED[complaint])
