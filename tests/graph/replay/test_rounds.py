"""Repeated rounds: what fails is said in a line, differences are found, and inputs near a kink are named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime import ModelSpec
from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.plan.plan import make_plan
from psruntime.errors import UsageError, UserCodeError
from psruntime.graph.input.batches import BatchLayout
from psruntime.graph.replay.plain_model import DISTANCES, Kinks
from psruntime.graph.replay.rounds import ReplayedPart, RoundReplay, joint_part
from psruntime.model import Model

SPECS = [VariableSpec("cut/part_0", (3, 3), "float32"), VariableSpec("cut/part_1", (2, 3), "float32")]
SPECS += [VariableSpec("whole", (3, 1), "float32")]


def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
    cut = tf1.get_variable("cut", [5, 3], partitioner=tf1.fixed_size_partitioner(2), initializer=tf1.ones_initializer())
    whole = tf1.get_variable("whole", [3, 1], initializer=tf1.ones_initializer())
    checked = tf1.debugging.check_numerics(features, "features")
    hidden = tf1.nn.relu(tf1.matmul(checked, tf1.concat(list(cut), 0)))
    error = tf1.matmul(hidden, whole)[:, 0] - labels
    return ModelSpec(tf1.reduce_mean(tf1.square(error)), lambda rate: tf1.train.MomentumOptimizer(rate, 0.9), 0.01)


@pytest.fixture
def replay() -> Iterator[RoundReplay]:
    with tf1.Graph().as_default():
        layout = BatchLayout((tf1.placeholder(tf1.float32, [None, 5]), tf1.placeholder(tf1.float32, [None])))
    plan = make_plan(SPECS, 2, 1 << 20)
    with closing(RoundReplay(Model("tests.cut", lambda _: None, model_fn), layout, plan)) as made:
        made.take(START.__getitem__, "start")
        yield made


START = {"cut": np.ones([5, 3], np.float32), "whole": np.full([3, 1], 0.5, np.float32)}
START |= {f"{name}/Momentum": np.zeros_like(value) for name, value in START.items()}


def a_part(scale: float = 1.0, **facts: Any) -> ReplayedPart:
    x = np.linspace(-scale, scale, 40, dtype=np.float32).reshape(8, 5)
    given = {"worker": 0, "weight": 8.0, "divisor": 1.0, "positions": (), "minibatches": [[x, np.ones(8, np.float32)]]}
    return ReplayedPart(**{**given, **facts})


def write(folder: Any, values: dict[str, Any]) -> str:
    with tf1.Graph().as_default(), tf1.Session() as session:
        save = tf1.raw_ops.SaveV2(
            prefix=str(folder / "model.ckpt"), tensor_names=list(values), shape_and_slices=[""] * len(values),
            tensors=[tf1.constant(value) for value in values.values()],
        )  # fmt: skip
        session.run(save)
    return str(folder / "model.ckpt")


def test_a_variable_in_parts_is_compared_with_the_whole_of_the_checkpoint(replay: RoundReplay, tmp_path: Any) -> None:
    replay.step([a_part()], 0)
    path = write(tmp_path, replay.values())
    found = replay.differences(path)
    assert set(found) == set(START) and {each.entries for each in found.values()} == {0}
    replay.step([a_part()], 1)
    assert min(each.largest for each in replay.differences(path).values()) > 1e-4


def test_one_bit_is_a_difference(replay: RoundReplay, tmp_path: Any) -> None:
    values = replay.values()
    values["whole"] = np.nextafter(values["whole"], np.float32(1))
    values["cut"][4, 2] = -0.0 if values["cut"][4, 2] == 0 else np.nan
    found = replay.differences(write(tmp_path, values))
    assert {name: each.entries for name, each in found.items() if each.entries} == {"whole": 3, "cut": 1}
    assert 0 < found["whole"].largest < 2e-7 and found["cut"].largest == np.inf


def test_a_round_is_the_joint_batch_but_for_rounding(replay: RoundReplay) -> None:
    """Of parts that weigh differently, in either order."""
    parts = [a_part(positions=(1,), divisor=2.0), a_part(3.0, worker=1, positions=(0,))]
    short = [array[:3] for array in parts[1].minibatches[0]]
    parts[1] = ReplayedPart(1, 3.0, 1.0, (0,), [short])
    replay.step(parts, 0)
    by_parts = replay.values()
    replay.take(START.__getitem__, "start")
    replay.step([joint_part(parts)], 0)
    for name, value in replay.values().items():
        np.testing.assert_allclose(by_parts[name], value, rtol=1e-5, atol=1e-6)


def test_what_fails_is_one_line(replay: RoundReplay, tmp_path: Any) -> None:
    with pytest.raises(UsageError, match=r"checkpoint .*missing cannot be read: "):
        replay.differences(str(tmp_path / "missing"))
    with pytest.raises(UsageError, match="does not fit the model: "):
        replay.take({**START, "cut": np.ones([4, 3], np.float32)}.__getitem__, "start")
    with pytest.raises(UserCodeError, match="the model failed: "):
        replay.step([a_part(float("nan"))], 3)
    with pytest.raises(UsageError, match="a batch of worker 1 weighs 8 here, and 5 in the job: give --model"):
        replay.step([a_part(worker=1, weight=5.0)], 3)


@pytest.mark.parametrize("is_read", [False, True])
def test_gradients_that_depend_on_what_the_workers_make_together_are_refused(is_read: bool) -> None:
    """A count beside them is only not compared."""

    def build(features: Any, labels: Any, mode: str) -> ModelSpec:
        settings = {"trainable": False, "initializer": tf1.zeros_initializer()}
        counts = [
            tf1.get_variable(name, [], aggregation=tf1.VariableAggregation.SUM, **settings)
            for name in ("beside", "read")
        ]
        spec = model_fn(features, labels, mode)
        used = counts[1] if is_read else 0.0
        return ModelSpec(spec.loss + used * tf1.reduce_sum(tf1.trainable_variables()[-1]), spec.optimizer, 0.01,
                         updates=[count.assign_add(1.0) for count in counts])  # fmt: skip

    with tf1.Graph().as_default():
        layout = BatchLayout((tf1.zeros([8, 5]), tf1.zeros([8])))
    makes = partial(RoundReplay, Model("tests.counts", lambda _: None, build), layout, make_plan(SPECS, 2, 1 << 20))
    if is_read:
        with pytest.raises(UsageError, match=r"the gradients of tests.counts depend on variable read, .* SUM"):
            makes()
    else:
        with closing(makes()) as made:
            assert made.model.not_compared == ["beside", "read"]


def test_a_variable_that_each_worker_changes_for_itself_is_named_if_the_gradients_depend_on_it() -> None:
    def build(features: Any, labels: Any, mode: str) -> ModelSpec:
        beside, read = [tf1.get_variable(n, [], trainable=False, initializer=tf1.ones_initializer()) for n in "br"]
        spec = model_fn(features * read, labels, mode)
        return ModelSpec(spec.loss, spec.optimizer, 0.01, updates=[v.assign_add(1.0) for v in (beside, read)])

    with tf1.Graph().as_default():
        layout = BatchLayout((tf1.zeros([8, 5]), tf1.zeros([8])))
    with closing(RoundReplay(Model("tests.own", lambda _: None, build), layout, make_plan(SPECS, 2, 1 << 20))) as made:
        assert (made.model.reads, made.model.not_compared) == (["r"], ["b", "r"])


def test_positions_of_another_number_of_buckets_are_refused(replay: RoundReplay) -> None:
    """On ps 0 the global step is behind the others."""
    assert replay._places == {4: [0, 2, 3]} or replay._places == {4: [0, 1, 3]}
    for positions in ((0,), (0, 0, 0, 0)):
        replay.step([a_part(positions=positions)], 0)
    with pytest.raises(UsageError, match="a round has 4 buckets in the log, and 3 here: give --model"):
        replay.step([a_part(positions=(0,) * 5)], 0)


def test_an_input_near_a_kink_is_named(replay: RoundReplay) -> None:
    assert replay.near_kinks([a_part()]) == []
    near = a_part()
    near.minibatches[0][0][2] = [1, -1, 1, -1, 1e-8]
    (text,) = replay.near_kinks([near])
    assert text.startswith("worker 0: an input of Relu Relu is 1.0e-08 from its kink, and inputs there are up to ")


@pytest.mark.parametrize(
    ("kind", "make"),
    {
        "Relu": tf1.nn.relu,
        "LeakyRelu": tf1.nn.leaky_relu,
        "Selu": tf1.nn.selu,
        "Abs": tf1.abs,
        "Relu6": lambda x: tf1.nn.relu6(x + 6.0),
        "Maximum": lambda x: tf1.maximum(x + 1.0, 1.0),
        "Minimum": lambda x: tf1.minimum(x + 1.0, 1.0),
        "ClipByValue": lambda x: tf1.raw_ops.ClipByValue(t=x + 1.0, clip_value_min=-9.0, clip_value_max=1.0),
        "Max": lambda x: tf1.reduce_max(tf1.stack([x, tf1.zeros_like(x)]), axis=0),
        "Min": lambda x: tf1.reduce_min(tf1.stack([x, tf1.zeros_like(x)]), axis=0),
        "TopKV2": lambda x: tf1.nn.top_k(tf1.concat([x, [0.0]], axis=0), k=2)[0],
    }.items(),
)
def test_every_kind_of_kink(kind: str, make: Any) -> None:
    """One input, of several, that comes near: by 1e-7, at 0 from the kink of the operation."""
    with tf1.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf1.float64, [3])
        kinks = Kinks(tf1.reduce_sum(make(x)))
        said = [kinks.near(session.run(kinks.measures, {x: [4.0, y, -3.0]})) for y in (1e-7, 0.01, 0.0)]
    assert [len(each) for each in said] == [1, 0, 0], said
    assert f"an input of {kind} " in said[0][0]
    assert set(DISTANCES) == set(dict(test_every_kind_of_kink.pytestmark[0].args[1]))
