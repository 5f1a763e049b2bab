"""Which runs of a script are steps, and the global step that they report."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import tensorflow.compat.v1 as tf1
from tensorflow.python.training import training_util

from psruntime.classic.counting import StepCounting
from psruntime.errors import UsageError
from psruntime.graph.base.graphs import ancestors
from tests.support.control_flow import control_flow


class Pair(NamedTuple):
    first: Any
    second: Any


class Script:
    """A graph with two train operations, and the ways in which users fetch them."""

    def __init__(self, use_resource: bool) -> None:
        self.weights = tf1.get_variable("weights", [2], use_resource=use_resource)
        step = tf1.get_variable(
            "global_step", [], tf1.int64, tf1.zeros_initializer(), trainable=False, use_resource=use_resource,
            collections=[tf1.GraphKeys.GLOBAL_VARIABLES, tf1.GraphKeys.GLOBAL_STEP],
        )  # fmt: skip
        self.step = step
        self.loss = tf1.reduce_sum(tf1.square(self.weights))
        self.train = tf1.train.AdamOptimizer().minimize(self.loss, global_step=step, name="train")
        with tf1.control_dependencies([self.train]):
            self.after = tf1.identity(self.loss)
        self.in_branch: Any = None  # TF1's references cannot be written in a branch
        if use_resource:
            self.in_branch = tf1.cond(self.loss >= 0, lambda: tf1.assign_add(step, 1), lambda: tf1.identity(step))
        self.written = tf1.assign(step, step + 10)


@pytest.fixture(params=[True, False], ids=["resource", "ref"])
def script(request: pytest.FixtureRequest) -> Any:
    with tf1.Graph().as_default():
        yield Script(request.param)


def test_a_step_is_whatever_reaches_the_count(script: Script) -> None:
    counting = StepCounting(tf1.get_default_graph())
    steps = [
        script.train, "train", [script.loss, script.train], {"a": (script.loss, [script.after])},
        Pair(script.loss, script.train), script.after, script.written,
    ]  # fmt: skip
    steps += [script.in_branch] if script.in_branch is not None else []
    for fetches in steps:
        assert counting.reads(fetches), fetches
    free = [script.loss, [script.loss, script.step], script.weights, script.weights.initializer, "weights", [],
            script.step.initializer]  # fmt: skip
    for fetches in free:
        assert not counting.reads(fetches), fetches


def test_what_is_read_is_the_step_after_the_run(script: Script) -> None:
    counting = StepCounting(tf1.get_default_graph())
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for expected in range(1, 30):
            _, reads = session.run([script.train, counting.reads(script.train)])
            assert reads == [expected]
        assert session.run(counting.global_step) == 29
        _, reads = session.run([script.written, counting.reads(script.written)])
        assert reads == [39]
        if script.in_branch is None:
            return
        _, reads = session.run([script.in_branch, counting.reads(script.in_branch)])
        assert reads in ([39], [40]), "a branch cannot be waited for"


def test_a_count_in_a_branch_of_the_new_control_flow() -> None:
    with control_flow(v2=True), tf1.Graph().as_default() as graph:
        script = Script(use_resource=True)
        counting = StepCounting(graph)
        assert counting.reads(script.in_branch) and not counting.reads(script.loss)
    assert "Switch" not in {operation.type for operation in graph.get_operations()}


def test_a_graph_in_which_nothing_counts_is_refused() -> None:
    with tf1.Graph().as_default() as graph:
        weights = tf1.get_variable("weights", [2], use_resource=True)
        tf1.train.GradientDescentOptimizer(0.1).minimize(tf1.reduce_sum(weights))
        with pytest.raises(UsageError, match="has no global step"):
            StepCounting(graph)
        tf1.train.get_or_create_global_step()
        with pytest.raises(UsageError, match="nothing counts the global step 'global_step'"):
            StepCounting(graph)


def test_a_saver_and_a_read_in_a_branch_count_nothing() -> None:
    with control_flow(v2=True), tf1.Graph().as_default() as graph:
        step = tf1.train.get_or_create_global_step()
        loss = tf1.cond(step < 10, lambda: tf1.cast(step, tf1.float32), lambda: tf1.zeros([]))
        saver = tf1.train.Saver()
        with pytest.raises(UsageError, match="nothing counts the global step"):
            StepCounting(graph)
        counted = tf1.assign_add(step, 1)
        counting = StepCounting(graph)
        assert counting.reads(counted)
        assert not counting.reads([loss, saver.saver_def.restore_op_name])


@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "ref"])
def test_a_plain_variable_that_minimize_counts_is_the_global_step(use_resource: bool) -> None:
    with tf1.Graph().as_default() as graph, tf1.variable_scope("", use_resource=use_resource):
        weights = tf1.Variable([1.0, 2.0])
        step = tf1.Variable(0)
        other = tf1.Variable(0, name="other")
        tf1.assign_add(other, 1)  # after no updates
        train = tf1.train.GradientDescentOptimizer(0.1).minimize(tf1.reduce_sum(weights**2), global_step=step)
        counting = StepCounting(graph)
        assert tf1.train.get_global_step() is step
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            assert [session.run([train, *counting.reads(train)])[1] for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "ref"])
def test_hooks_read_the_global_step_without_asking_whether_it_is_initialised(use_resource: bool) -> None:
    with tf1.Graph().as_default() as graph, tf1.variable_scope("", use_resource=use_resource):
        weights, step = tf1.Variable([1.0, 2.0]), tf1.train.get_or_create_global_step()
        train = tf1.train.GradientDescentOptimizer(0.1).minimize(tf1.reduce_sum(weights**2), global_step=step)
        counting = StepCounting(graph)
        read = training_util._get_or_create_global_step_read()
        assert {op.type for op in ancestors([read.op])}.isdisjoint({"If", "StatelessIf", "Switch", "RefSwitch"})
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run([train, *counting.reads(train)])
            assert session.run(read) == 1


def test_of_two_plain_variables_that_are_counted_neither_is_taken() -> None:
    with tf1.Graph().as_default() as graph:
        weights = tf1.Variable([1.0, 2.0])
        for name in ("generator_steps", "critic_steps"):
            step = tf1.Variable(0, name=name)
            tf1.train.GradientDescentOptimizer(0.1).minimize(tf1.reduce_sum(weights**2), global_step=step)
        with pytest.raises(UsageError, match=r"no global step.*; several are counted: generator_steps, critic_steps$"):
            StepCounting(graph)
