"""Runs with hooks give what TensorFlow's give, for fetches and feeds of any kind."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1
from tensorflow.python.training.monitored_session import _HookedSession

from psruntime.classic.hooked_session import MOST_CALLS, HookedSession, identity_of
from psruntime.graph.session.session import ViewSession

Pair = namedtuple("Pair", "first second")


class Session(ViewSession):
    """Counts the runs that TensorFlow takes apart."""

    whole = 0

    def run(self, *arguments: Any, **named: Any) -> Any:
        self.whole += 1
        return super().run(*arguments, **named)


class Asks(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Asks for something, and keeps what it got."""

    def __init__(self, **arguments: Any) -> None:
        self._arguments = arguments
        self.got: list[Any] = []

    def before_run(self, run_context: Any) -> Any:
        return tf1.train.SessionRunArgs(**self._arguments)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.got.append(run_values.results)


class World:
    """A graph with some elements, and a session of each kind on it."""

    def __init__(self) -> None:
        self.number = tf1.placeholder(tf1.float32, [])
        self.pixels = tf1.placeholder(tf1.float32, [None, 2])
        self.count = tf1.placeholder(tf1.int64, [])
        self.word = tf1.placeholder(tf1.string, [])
        self.sparse = tf1.sparse_placeholder(tf1.float32)
        self.variable = tf1.get_variable("v", [], initializer=tf1.constant_initializer(3.0))
        self.twice = 2 * self.number
        self.total = tf1.reduce_sum(self.pixels)
        self.one = tf1.constant(1.0)
        self.more = 2 * self.one
        self.operation = tf1.no_op()
        self.session = Session()
        self.session.run(self.variable.initializer)
        self.session.whole = 0


@pytest.fixture
def world() -> Iterator[World]:
    with tf1.Graph().as_default():
        world = World()
        with world.session:
            yield world


ARRAY = np.ones([3, 2], np.float32)
RUNS = {
    "tensor": lambda w: (w.one, None),
    "operation": lambda w: (w.operation, None),
    "variable": lambda w: (w.variable, None),
    "name": lambda w: ("v:0", None),
    "list": lambda w: ([w.one, w.operation], None),
    "tuple in a dict": lambda w: ({"a": (w.one, [w.variable])}, None),
    "named tuple": lambda w: (Pair(w.one, w.variable), None),
    "ordered": lambda w: (OrderedDict(b=w.one, a=w.variable), None),
    "nothing": lambda w: ([], None),
    "nothing in a list": lambda w: ([w.one, []], None),
    "array": lambda w: (w.total, {w.pixels: ARRAY}),
    "array of another dtype": lambda w: (w.total, {w.pixels: ARRAY.astype(np.float64)}),
    "array of integers": lambda w: (w.total, {w.pixels: ARRAY.astype(np.uint8)}),
    "array of floats for an integer": lambda w: (w.count + 1, {w.count: np.array(2.5)}),
    "array of strings": lambda w: (w.total, {w.pixels: ARRAY.astype("U8")}),
    "number of numpy": lambda w: (w.twice, {w.number: np.float64(0.5)}),
    "truth for a float": lambda w: (w.twice, {w.number: True}),
    "list of numbers": lambda w: (w.total, {w.pixels: [[1, 2], [3, 4]]}),
    "list of arrays": lambda w: (w.total, {w.pixels: list(ARRAY.astype(np.float64))}),
    "tuple": lambda w: (w.total, {w.pixels: ((1, 2.5),)}),
    "float": lambda w: (w.twice, {w.number: 0.5}),
    "integer for a float": lambda w: (w.twice, {w.number: 2}),
    "integer": lambda w: (w.count + 1, {w.count: 2}),
    "two feeds": lambda w: ([w.twice, w.total], {w.number: 0.5, w.pixels: ARRAY}),
    "what is fed": lambda w: ([w.number, w.twice], {w.number: 0.5}),
    "what is computed": lambda w: (w.more, {w.one: 4.0}),
    "by name": lambda w: (w.twice, {"Placeholder:0": 0.5}),
    "sparse": lambda w: (tf1.sparse.to_dense(w.sparse), {w.sparse: tf1.SparseTensorValue([[0]], [1.0], [2])}),
}
TAKEN_APART = {
    "name", "named tuple", "ordered", "nothing", "nothing in a list", "array of strings", "what is fed", "by name",
    "sparse",
}  # fmt: skip


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_gives_what_tensorflow_gives(kind: str, world: World) -> None:
    fetches, feeds = RUNS[kind](world)
    hook, plain = Asks(fetches={"v": world.variable}), Asks(fetches={"v": world.variable})
    expected = _HookedSession(world.session, [plain]).run(fetches, feeds)
    world.session.whole = 0
    session = HookedSession(world.session, [hook])
    for _ in range(3):
        found = session.run(fetches, feeds)
        assert type(found) is type(expected)
        tf1.nest.map_structure(np.testing.assert_array_equal, found, expected)
    assert hook.got == 3 * plain.got == 3 * [{"v": 3.0}]
    assert world.session.whole == (3 if kind in TAKEN_APART else 0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda w: (w.total, {w.pixels: np.ones([3], np.float32)}),
        lambda w: (w.total, {w.pixels: np.ones([3, 3], np.float32)}),
        lambda w: (w.total, {w.pixels: w.one}),
        lambda w: (w.total, {w.pixels: None}),
        lambda w: (w.count, {w.count: 1 << 64}),
        lambda w: (w.total, {w.pixels: [[1, 2], [3]]}),
        lambda w: (w.total, {w.pixels: [1, 2]}),
        lambda w: (tf1.strings.length(w.word), {w.word: 3}),
        lambda w: (w.total, {w.pixels: [["a", "b"]]}),
        lambda w: (w.twice, {3: 0.5}),
        lambda w: (w.twice, None),
        lambda w: (None, None),
        lambda w: ("no such", None),
        lambda w: ([w.one, 3], None),
    ],
)
def test_a_mistake_is_tensorflows_error(wrong: Any, world: World) -> None:
    fetches, feeds = wrong(world)
    with pytest.raises(Exception) as expected:
        _HookedSession(world.session, []).run(fetches, feeds)
    with pytest.raises(type(expected.value)) as found:
        HookedSession(world.session, []).run(fetches, feeds)
    assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_hooks_feed_ask_for_options_and_stop(world: World) -> None:
    feeds = Asks(fetches=world.twice, feed_dict={world.number: np.float32(2.0)})
    session = HookedSession(world.session, [feeds])
    assert session.run(world.total, {world.pixels: ARRAY}) == 6.0 and feeds.got == [4.0]
    with pytest.raises(RuntimeError, match="fed by a SessionRunHook and user"):
        session.run(world.total, {world.number: 1.0})

    class Traces(tf1.train.SessionRunHook):  # type: ignore[misc]
        def before_run(self, run_context: Any) -> Any:
            return tf1.train.SessionRunArgs(None, options=tf1.RunOptions(output_partition_graphs=True))

        def after_run(self, run_context: Any, run_values: Any) -> None:
            assert run_values.results is None and run_values.options.output_partition_graphs
            assert run_values.run_metadata.partition_graphs
            run_context.request_stop()

    session = HookedSession(world.session, [Traces()])
    assert session.run(world.one) == 1.0 and session.should_stop()
    with pytest.raises(RuntimeError, match="after should_stop"):
        session.run(world.one)
    metadata = tf1.RunMetadata()
    HookedSession(world.session, []).run(world.one, None, tf1.RunOptions(output_partition_graphs=True), metadata)
    assert metadata.partition_graphs


def test_new_fetches_in_every_run_cost_no_memory(world: World) -> None:
    session = HookedSession(world.session, [])
    for number in range(2 * MOST_CALLS):
        assert session.run({number: world.one}) == {number: 1.0}
    assert world.session.whole == 0
    elements: list[Any] = []
    assert identity_of({"a": world.one}, elements) != identity_of({"b": world.one}, elements)
    assert identity_of([world.one], elements) != identity_of((world.one,), elements)
