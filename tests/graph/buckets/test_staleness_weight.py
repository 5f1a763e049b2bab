"""The learning rate that an update's own staleness lowers: what is applied is what numpy makes of the rule.

The pushes of a schedule are as late as it says.  For every kind of variable: dense, rows, packed, a group of tables, a
dynamic table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.config.values import StalenessLr
from psruntime.core.accounting.accounts import APPLIED, DOWN_WEIGHTED, RECEIVED, STALE, is_balanced
from psruntime.core.plan.buckets import Bucket, Piece
from psruntime.graph.buckets.apply import StalenessWeight, bucket_update
from psruntime.graph.buckets.bucket_store import BucketSection, PsControl
from psruntime.graph.buckets.gradient import BucketGradient
from psruntime.graph.buckets.optimizers import BucketOptimizer, Rule
from psruntime.graph.push.guard import PushedBucket, guarded_update
from psruntime.graph.push.step_messages import PUSH_ID_SIZE, Push, ReceivedPush
from tests.optimizers import reference
from tests.optimizers.test_formulas import CASES
from tests.support.by_hand import ByHand
from tests.support.dynamic_reference import dynamic_model, skewed_ids
from tests.support.local_cluster import LocalCluster, Run, linear_model, train, with_spec
from tests.support.selection import long_but
from tests.support.small_models import get, linear, model_of

RATE, MOMENTUM = 0.1, 0.9
ROWS, WIDTH = 8, 3
LATE = [0, 1, 2, 0, 5, 3, 9, 1, 4]  # versions, of one push after the other; nobody is admitted later than LIMIT
LIMIT = 9
WORKER, INCARNATION = 0, 50
RULES = {"inverse": lambda late: 1 / max(late, 1), "exponential:0.3": lambda late: math.exp(-0.3 * late)}
every_rule = pytest.mark.parametrize("rule", RULES)


class Sgd(reference.Reference):
    def __init__(self, value: Any, rate: float) -> None:
        super().__init__(value, rate)

    def update_row(self, row: int, g: Any) -> None:
        self.w[row] -= self.rate * g


class Momentum(reference.Reference):
    def __init__(self, value: Any, rate: float) -> None:
        super().__init__(value, rate, momentum=np.zeros_like(value))

    def update_row(self, row: int, g: Any) -> None:
        velocity = self.slots["momentum"]
        velocity[row] = MOMENTUM * velocity[row] + g
        self.w[row] -= self.rate * velocity[row]


class Adagrad(reference.Reference):
    def __init__(self, value: Any, rate: float) -> None:
        super().__init__(value, rate, accumulator=np.full(np.shape(value), 0.1))

    def update_row(self, row: int, g: Any) -> None:
        squares = self.slots["accumulator"]
        squares[row] += g**2
        self.w[row] -= self.rate * g / np.sqrt(squares[row])


OF_TENSORFLOW: dict[str, tuple[Any, Callable[[Any, float], reference.Reference]]] = {
    "SGD": (tf1.train.GradientDescentOptimizer, Sgd),
    "Momentum": (partial(tf1.train.MomentumOptimizer, momentum=MOMENTUM), Momentum),
    "Adagrad": (tf1.train.AdagradOptimizer, Adagrad),
}
DENSE = {
    **OF_TENSORFLOW,
    "Adam": (tf1.train.AdamOptimizer, reference.LazyAdam),  # of a gradient of all rows they are the same
    "Ftrl": (tf1.train.FtrlOptimizer, reference.GroupFtrl),
}
OF_ROWS = {**OF_TENSORFLOW, **CASES}
GRADIENT_WEIGHED = ("Ftrl", "GroupFtrl", "GroupFtrl without groups")


class Guarded:
    """A bucket of 8 rows behind its guard, whose pushes are as late as the caller says."""

    def __init__(self, cluster: LocalCluster, make: Any, initial: Any, rule: str, by_rows: bool) -> None:
        shape = initial.shape if by_rows else (initial.size,)
        name, whole = ("rows", initial.shape) if by_rows else ("dense", None)
        bucket = Bucket(name, 0, (Piece("w", 0, initial.size),), "float32", whole, by_rows)
        with tf1.Graph().as_default() as graph:
            control, section = PsControl(0, cluster.max_workers), BucketSection([bucket], cluster.max_workers)
            (store,) = section.stores
            with tf1.device("/job:ps/task:0"):
                self._identity = tf1.placeholder(tf1.int64, [PUSH_ID_SIZE])
                self._values = tf1.placeholder(tf1.float32, [None, WIDTH] if by_rows else shape)
                self._indices = tf1.placeholder(tf1.int64, [None]) if by_rows else None
                rate = tf1.constant(RATE)
                finite = tf1.constant(True)
            parsed = StalenessLr.of(rule)
            assert parsed
            weight = StalenessWeight(parsed, 0, control.numbers, [rate], 0)
            optimizer = BucketOptimizer([Rule("*", make, RATE)], bucket, weight.rates)
            weight.of_gradient = optimizer.is_of_sums
            request = ReceivedPush(Push.of(self._identity, finite), learning_rates=[rate], members=None, factor=None)
            gradient, update = BucketGradient(self._values, self._indices), bucket_update(optimizer, store)
            pushed = PushedBucket(store, gradient, update, weight)
            self._outcome, _ = guarded_update(section, control, request, [pushed])
            self._pulled = section.pulled_version
            init = [store.master.assign(np.reshape(initial, shape))]
            init += [v.initializer for v in [*section.counters, *optimizer.variables]]
            limited = control.max_staleness.assign(LIMIT)
            slots = [v.read_value() for v in optimizer.variables if optimizer.is_slot(v, store.master)]
            self._held = [store.master.read_value(), *slots]
            self._version, self._ledger = store.version(), store.ledger()
        self._session = cluster.session(graph)
        self._session.run([init, limited])
        self._pushes = 0

    def push(self, late: int, rows: Any, values: Any) -> tuple[int, int]:
        """(verdict, staleness)."""
        self._pushes += 1
        feed: dict[Any, Any] = {
            self._identity: [WORKER, INCARNATION, self._pushes, INCARNATION],
            self._pulled: [self._session.run(self._version) - late],
        }
        if self._indices is None:
            feed[self._values] = np.reshape(values, -1)
        else:
            feed.update({self._values: values, self._indices: rows})
        return tuple(map(int, self._session.run(self._outcome, feed)))  # type: ignore[return-value]

    def held(self) -> list[Any]:
        """Master and slots, [8, 3] where they are of entries."""
        return [np.reshape(v, [ROWS, -1]) if np.size(v) > ROWS else v for v in self._session.run(self._held)]

    def ledger(self) -> Any:
        return self._session.run(self._ledger)


@pytest.fixture(scope="module")
def cluster() -> LocalCluster:
    cluster = LocalCluster(1, max_staleness=LIMIT)
    cluster.fence({WORKER: INCARNATION})
    return cluster


def drive(cluster: LocalCluster, case: tuple[Any, Any], rule: str, of_gradient: bool, by_rows: bool) -> None:
    make, of_reference = case
    random = np.random.RandomState(5)
    initial = random.standard_normal([ROWS, WIDTH]).astype("float32")
    guarded, expected = Guarded(cluster, make, initial, rule, by_rows), of_reference(initial, RATE)
    for late in LATE:
        rows = random.choice(ROWS, 4, replace=False) if by_rows else np.arange(ROWS)
        values = random.standard_normal([len(rows), WIDTH]).astype("float32")
        before = guarded.held()
        assert guarded.push(LIMIT + 1, rows, values)[0] == STALE
        for mine, value in zip(guarded.held(), before, strict=True):
            np.testing.assert_array_equal(mine, value)
        assert guarded.push(late, rows, values) == (APPLIED, late)
        weight = RULES[rule](late)
        expected.rate = RATE if of_gradient else weight * RATE
        expected.update(rows, weight * values if of_gradient else values)
    for mine, value in zip(guarded.held(), [expected.w, *expected.slots.values()], strict=True):
        np.testing.assert_allclose(mine, value, rtol=2e-6, atol=2e-6)
    ledger = guarded.ledger()
    assert (ledger[RECEIVED], ledger[APPLIED], ledger[STALE]) == (2 * len(LATE), len(LATE), len(LATE))
    assert ledger[DOWN_WEIGHTED] == sum(RULES[rule](late) < 1 for late in LATE) < len(LATE)
    assert is_balanced(ledger)


@every_rule
@pytest.mark.parametrize("optimizer", long_but(["SGD", "Adam"], DENSE))
def test_a_dense_update(cluster: LocalCluster, optimizer: str, rule: str) -> None:
    drive(cluster, DENSE[optimizer], rule, optimizer in GRADIENT_WEIGHED, by_rows=False)


@every_rule
@pytest.mark.parametrize("optimizer", long_but(["Momentum", "LazyAdam"], OF_ROWS))
def test_an_update_of_rows(cluster: LocalCluster, optimizer: str, rule: str) -> None:
    drive(cluster, OF_ROWS[optimizer], rule, optimizer in GRADIENT_WEIGHED, by_rows=True)


def packed(x: Any, y: Any, _ids: Any) -> Any:
    return linear(x, get("a", [5, 1]) + get("b", [5, 1], 2), y)


def of_group(_x: Any, y: Any, ids: Any) -> Any:
    one, two = get("one", [7, 4], 3), get("two", [9, 4], 4)
    return linear(tf1.nn.embedding_lookup(one, ids) + tf1.nn.embedding_lookup(two, ids), get("head", [4, 1]), y)


IDS = skewed_ids(3, (64, 4))
MODELS: dict[str, Callable[[], Any]] = {
    "packed": lambda: with_spec(model_of(packed), optimizer=tf1.train.AdamOptimizer),
    "sliced": lambda: linear_model(tf1.train.RMSPropOptimizer),
    "table group": lambda: model_of(of_group),
    "dynamic table": lambda: dynamic_model(IDS, np.ones([len(IDS)], "float32"), capacity=64),
}
SETTINGS = {"sliced": {"slice_bytes": 64}}
RULE = "exponential:0.25"
SINCE = 2  # steps before the pushes by hand


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_that_of_the_lowered_rate(name: str) -> None:
    """Beside one without the rule whose learning rate is lowered by hand, with the same batches."""
    rates = [RATE]
    lowered = with_spec(MODELS[name](), learning_rate=lambda _: rates[0])
    by_rule = by_hand(with_spec(MODELS[name](), learning_rate=RATE), name, staleness_lr=RULE)
    plain = by_hand(lowered, name)
    for number, late in enumerate(LATE):
        rates[0] = RATE * math.exp(-0.25 * late)
        for job in (by_rule, plain):
            applied = set(job.push(100 + number, behind=late).values())
            assert applied == {APPLIED}
    ours, theirs = by_rule.look(), plain.look()
    assert ours.keys() == theirs.keys()
    for bucket, held in ours.items():
        for variable, value in held.items():
            np.testing.assert_allclose(value, theirs[bucket][variable], rtol=2e-5, atol=2e-6, err_msg=variable)
    lowered_count = sum(late > 0 for late in LATE)
    for bucket, ledger in ledgers(by_rule.run).items():
        assert ledger[DOWN_WEIGHTED] == (lowered_count if bucket != "global_step" else 0)
    assert {int(ledger[DOWN_WEIGHTED]) for ledger in ledgers(plain.run).values()} == {0}


def by_hand(model: Any, name: str, **settings: Any) -> ByHand:
    cluster = LocalCluster(1 + (name == "sliced"))
    run = train(cluster, model, SINCE, **SETTINGS.get(name, {}), **settings)
    features = np.random.RandomState(1).standard_normal([len(LATE), 8, 5]).astype("float32")
    placeholders = run.graph.model.batch
    batches = [[made_of(each, features[i], i) for each in placeholders] for i in range(len(LATE))]
    return ByHand(run, batches)


def made_of(placeholder: Any, features: Any, number: int) -> Any:
    """What the i-th batch has for a placeholder of one of the models."""
    if placeholder.dtype == tf1.int64:
        return IDS[8 * (number % 8) :][:8]
    if placeholder.dtype == tf1.int32:
        return (np.arange(8) * (number + 2)) % 7
    return features if placeholder.shape.rank == 2 else features.sum(axis=1)


def ledgers(run: Run) -> dict[str, Any]:
    return run.cluster.ledgers(run.graph.plan)


@pytest.mark.long
def test_without_the_rule_the_graph_is_that_of_before() -> None:
    """No operation of the rule is there; with it only a few of each bucket are."""
    plain, by_rule = (
        [
            op.name
            for op in train(
                LocalCluster(1), linear_model(tf1.train.AdamOptimizer), 1, **more
            ).graph.graph.get_operations()
        ]
        for more in ({}, {"staleness_lr": "inverse"})
    )
    assert not [name for name in plain if "by_staleness" in name]
    assert 0 < len(by_rule) - len(plain) < 25
