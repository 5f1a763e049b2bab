"""A global step of any making: the kind of variable, how the script names it, and its dtype."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.classic.counting import StepCounting, counts_to
from psruntime.classic.identity import identity_of_checkpoint
from psruntime.errors import UsageError
from tests.support.selection import long_but

WHOLE = (tf1.int8, tf1.uint8, tf1.int16, tf1.int32, tf1.int64)
DTYPES = (*WHOLE, tf1.float16, tf1.bfloat16, tf1.float32, tf1.float64)
GLOBAL, STEP = tf1.GraphKeys.GLOBAL_VARIABLES, tf1.GraphKeys.GLOBAL_STEP
COLLECTIONS: dict[str, list[str] | None] = {
    "default": None, "none": [], "global step": [GLOBAL, STEP], "another": [GLOBAL, "my_steps"],
}  # fmt: skip


def make(kind: str, name: str, dtype: Any, collections: list[str] | None, shape: list[int]) -> Any:
    more = {"collections": collections} if collections is not None else {}
    if kind == "Variable":
        return tf1.Variable(tf1.zeros(shape, dtype), trainable=False, name=name, **more)
    initializer = tf1.zeros_initializer()
    return tf1.get_variable(name, shape, dtype, initializer, trainable=False, **more)


def minimize(step: Any) -> Any:
    weights = tf1.get_variable("weights", [2], initializer=tf1.ones_initializer())
    return tf1.train.GradientDescentOptimizer(0.1).minimize(tf1.reduce_sum(weights**2), global_step=step)


def counted_by_hand(shape: list[int]) -> Any:
    """TensorFlow's minimize() counts scalars alone."""
    step = make("Variable", "global_step", tf1.int32, None, shape)
    with tf1.control_dependencies([minimize(None)]):
        return tf1.assign_add(step, tf1.ones(shape, tf1.int32)).op


def counted(train: Any, counting: StepCounting, steps: int = 3) -> list[int]:
    """What a step reads, under the hooks of TensorFlow that need a global step."""
    with tf1.train.SingularMonitoredSession(hooks=[tf1.train.StopAtStepHook(last_step=steps)]) as session:
        found = []
        while not session.should_stop():
            _, (read,) = session.run([train, counting.reads(train)])
            found.append(int(read))
    return found


CASES = [
    *product(("Variable", "get_variable"), ("global_step", "my_step"), COLLECTIONS, (tf1.int32, tf1.float32)),
    *product(("get_variable",), ("global_step",), ("default",), DTYPES),
]


@pytest.mark.parametrize("use_resource", long_but([True], [False, True]), ids=["ref", "resource"])
def test_a_step_of_any_making_is_counted(use_resource: bool, tmp_path: Path) -> None:
    for kind, name, collections, dtype in CASES:
        case = (kind, name, collections, dtype.name)
        with tf1.Graph().as_default() as graph, tf1.variable_scope("", use_resource=use_resource):
            step = make(kind, name, dtype, COLLECTIONS[collections], [])
            train = minimize(step)
            counting = StepCounting(graph)
            assert counting.name == name and counting.most == counts_to(dtype), case
            assert [v.op.name for v in tf1.global_variables() if v.op.name == name] == [name], case
            tf1.train.Saver().export_meta_graph(f"{tmp_path}/model.ckpt-1.meta")
            assert counted(train, counting) == [1, 2, 3], case
        there = identity_of_checkpoint(f"{tmp_path}/model.ckpt-1")
        assert there is not None and dict(there.facts)[f"variable {name}"] == f"{dtype.name}[]", case


def test_a_step_that_is_a_list_of_one() -> None:
    with tf1.Graph().as_default() as graph:
        train = counted_by_hand([1])
        assert counted(train, StepCounting(graph)) == [1, 2, 3]


def test_what_the_script_names_wins_and_what_is_counted_over_what_is_not() -> None:
    for given, declared, name in ((True, False, "mine"), (False, True, "mine"), (True, True, "mine")):
        with tf1.Graph().as_default() as graph:
            if declared:
                tf1.train.get_or_create_global_step()  # which nothing counts
            mine = make("Variable", "mine", tf1.int32, None, [])
            train = minimize(mine)
            if given:
                other = make("Variable", "other", tf1.int32, None, [])
                with tf1.control_dependencies([train]):
                    train = tf1.group(other.assign_add(1))
            counting = StepCounting(graph, mine if given else None)
            assert counting.name == name and counting.reads(train)


def test_a_trainable_step_and_a_metric_beside_it() -> None:
    """A loss that is averaged counts its runs, too, in a local variable."""
    with tf1.Graph().as_default() as graph:
        step = tf1.Variable(0.0)
        train = minimize(step)
        with tf1.control_dependencies([train]):
            tf1.metrics.mean(tf1.constant(1.0))
        assert StepCounting(graph).name == step.op.name


REFUSED: dict[str, tuple[Any, str]] = {
    "local": (
        lambda: minimize(make("Variable", "mine", tf1.int32, [tf1.GraphKeys.LOCAL_VARIABLES, STEP], [])),
        "'mine' is a local variable, which begins anew",
    ),
    "two": (lambda: counted_by_hand([2]), r"'global_step' is int32\(2,\), and is to be one int64"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_count_is_one_line(kind: str) -> None:
    build, complaint = REFUSED[kind]
    with tf1.Graph().as_default() as graph:
        build()
        with pytest.raises(UsageError, match=complaint) as refused:
            StepCounting(graph)
        assert "\n" not in str(refused.value)


def test_a_count_ends_where_its_dtype_does() -> None:
    """Where one more is no more."""
    for dtype in (tf1.float16, tf1.bfloat16, tf1.float32, tf1.float64):
        with tf1.Graph().as_default(), tf1.Session() as session:
            most = tf1.constant(counts_to(dtype), dtype)
            before, at = session.run([most - 1, most + 1])
            assert int(before) == counts_to(dtype) - 1 and int(at) == counts_to(dtype), dtype
    with tf1.Graph().as_default() as graph:
        minimize(make("Variable", "my_step", tf1.float16, None, []))
        counting = StepCounting(graph)
        counting.require_room(2047)
        with pytest.raises(UsageError, match=r"'my_step' is of a dtype that counts to 2048 only, .* make it an int64"):
            counting.require_room(2048)
