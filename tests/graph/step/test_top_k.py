"""Of dense gradients the largest entries are sent: to the bit what numpy makes of them, on ps and workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import (
    APPLIED,
    FENCED,
    NOT_FINITE,
    PENDING,
    RECEIVED,
    REPEATED,
    STALE,
    is_balanced,
)
from psruntime.errors import UsageError
from psruntime.graph.base.variable_values import LASTING
from psruntime.graph.push.pushed_gradient import SAMPLED, largest
from psruntime.model import Context, Model, ModelSpec
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.local_cluster import INCARNATION, LocalCluster, Run, graph_of, train

WIDTH, FEW, ROWS, BATCH = 5000, 3, 7, 8
TOP_K, RATE, FACTOR = 0.01, 0.5, 0.5  # powers of two, as all data: what is computed of them is exact
MOMENTUM = {
    "sgd": (tf1.train.GradientDescentOptimizer, 0.0, False),
    "momentum": (partial(tf1.train.MomentumOptimizer, momentum=FACTOR), FACTOR, False),
    "nesterov": (partial(tf1.train.MomentumOptimizer, momentum=FACTOR, use_nesterov=True), FACTOR, True),
}
STEPS = 6
SETTINGS = {"plan": "per-variable", "top_k": TOP_K, "max_staleness": 3}


def wide_model(optimizer: Callable[[Any], Any], learning_rate: float = RATE) -> Model:
    """Linear in its variables: wide [WIDTH], few [FEW], table [ROWS, 2].  The gradients are means of small integers."""

    def input_fn(context: Context) -> Any:
        random = np.random.default_rng(5)
        data = random.integers(-32, 32, [80, WIDTH]).astype(np.float32), random.integers(ROWS, size=80)
        return tf1.data.Dataset.from_tensor_slices(data).batch(context.batch_size)

    def model_fn(x: Any, ids: Any, mode: str) -> ModelSpec:
        zeros = tf1.zeros_initializer()
        wide = tf1.get_variable("wide", [WIDTH], initializer=zeros)
        few = tf1.get_variable("few", [FEW], initializer=zeros)
        rows = tf1.gather(tf1.get_variable("table", [ROWS, 2], initializer=zeros), ids)
        each = tf1.linalg.matvec(x, wide) + tf1.linalg.matvec(x[:, :FEW], few) + tf1.reduce_sum(x[:, :2] * rows, axis=1)
        return ModelSpec(tf1.reduce_mean(each), optimizer, learning_rate)

    return Model("tests.wide", input_fn, model_fn)


def batches(worker: int = 0) -> Iterator[list[Any]]:
    random = np.random.default_rng(worker)
    while True:
        yield [random.integers(-32, 32, [BATCH, WIDTH]).astype(np.float32), random.integers(ROWS, size=BATCH)]


@dataclass
class Sender:
    """What a worker keeps of one variable, in numpy."""

    factor: float = 0.0
    nesterov: bool = False
    wire: str = "float32"
    velocity: Any = field(default_factory=lambda: np.zeros(WIDTH, np.float32))
    unsent: Any = field(default_factory=lambda: np.zeros(WIDTH, np.float32))

    def sent(self, gradient: Any) -> Any:
        """The gradient as it is sent, zeros where nothing is."""
        factor = np.float32(self.factor)
        self.velocity = factor * self.velocity + gradient
        self.unsent = self.unsent + (gradient + factor * self.velocity if self.nesterov else self.velocity)
        places = np.argsort(-np.abs(self.unsent), kind="stable")[: round(TOP_K * WIDTH)]
        sent = np.zeros(WIDTH, np.float32)
        sent[places] = self.unsent[places].astype(tf1.as_dtype(self.wire).as_numpy_dtype)
        self.unsent[places] -= sent[places]
        return sent


class Worker:
    """One that pushes by hand, and what it is known to keep."""

    def __init__(self, index: int, run: Run, model: Model, sender: Sender) -> None:
        self.index, self.run, self.sender = index, run, sender
        self.graph = run.graph if index == 0 else graph_of(index, run, model)
        self.batches = batches(index)
        cluster = run.cluster
        self.session = cluster.session_of(index, self.graph.graph) if index else cluster.session(self.graph.graph)
        kept = self.graph.graph.get_collection(LASTING)
        with self.graph.graph.as_default():
            self._kept = {variable.op.name.removeprefix("psruntime/"): variable.read_value() for variable in kept}
            self._masters = {name: s.master.read_value() for name, s in self.graph.model.stores.items()}
            self.session.run([v.initializer for v in [*kept, *tf1.local_variables()]])

    def push(self, sequence: int, *, incarnation: int | None = None, poison: bool = False, behind: int = 0) -> Any:
        """(gradient of the wide variable, bucket -> outcome)."""
        x, ids = next(self.batches)
        given = np.full_like(x, np.nan) if poison else x
        feed = dict(zip(self.graph.model.batch, [given, ids], strict=True))
        who = INCARNATION + self.index if incarnation is None else incarnation
        feed[self.graph.request.fed] = self.graph.request.values((self.index, who, sequence, 5))
        if self.graph.rounds:
            feed[self.graph.rounds.request.fed] = self.graph.rounds.request.nothing
        if behind:
            live = self.session.run(self.graph.model.versions)
            feed.update({tensor: live[name] - behind for name, tensor in self.graph.model.versions.items()})
        outcomes = self.session.run(self.graph.step, feed)["outcomes"]
        names = [bucket.name for ps in range(self.run.job.ps) for bucket in self.graph.plan.on(ps)]
        told = [int(row[0]) for of_ps in outcomes for row in of_ps]
        return x.mean(axis=0), dict(zip([*names, "global_step"], told, strict=True))

    def kept(self) -> dict[str, Any]:
        found: dict[str, Any] = self.session.run(self._kept)
        return found

    def masters(self) -> dict[str, Any]:
        found: dict[str, Any] = self.session.run(self._masters)
        return found

    def assert_keeps_what_it_should(self) -> None:
        kept = self.kept()
        assert {name for name in kept if name.startswith(("residue", "velocity"))} == (
            {"residue/wide", "velocity/wide"} if self.sender.factor else {"residue/wide"}
        )
        np.testing.assert_array_equal(kept["residue/wide"], self.sender.unsent)
        np.testing.assert_array_equal(kept.get("velocity/wide", self.sender.velocity), self.sender.velocity)


def workers(optimizer: str, **settings: Any) -> list[Worker]:
    """Two, of one job."""
    make, factor, nesterov = MOMENTUM[optimizer]
    model = wide_model(make)
    cluster = LocalCluster(1, settings.get("max_staleness"))
    run = train(cluster, model, 0, **settings)
    cluster.fence({0: INCARNATION, 1: INCARNATION + 1})
    wire = settings.get("wire", "float32")
    return [Worker(index, run, model, Sender(factor, nesterov, wire)) for index in range(2)]


@pytest.mark.long
@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", MOMENTUM)
def test_two_workers_send_what_numpy_sends_and_keep_the_rest(optimizer: str, wire: str) -> None:
    """What rounding leaves over is kept, too."""
    both = workers(optimizer, wire=wire, **SETTINGS)
    expected = np.zeros(WIDTH, np.float32)
    for step in range(STEPS):
        for worker in both:
            gradient, told = worker.push(step + 1)
            assert set(told.values()) == {APPLIED}
            expected -= np.float32(RATE) * worker.sender.sent(gradient)
            np.testing.assert_array_equal(worker.masters()["wide"], expected)
            worker.assert_keeps_what_it_should()
    assert 0 < np.count_nonzero(expected) <= 2 * STEPS * round(TOP_K * WIDTH) < WIDTH
    for row in both[0].run.cluster.ledgers(both[0].graph.plan).values():
        assert (row[RECEIVED], row[APPLIED]) == (2 * STEPS, 2 * STEPS)
        assert is_balanced(row)


@pytest.mark.long
def test_what_is_refused_is_lost_with_what_it_had_but_not_with_what_it_had_not() -> None:
    worker = workers("momentum", **SETTINGS)[0]
    gradient, _ = worker.push(1)
    worker.sender.sent(gradient)
    before = worker.masters()
    for cause, how in [
        (NOT_FINITE, {"sequence": 2, "poison": True}),
        (REPEATED, {"sequence": 1}),
        (FENCED, {"sequence": 3, "incarnation": 3}),
        (STALE, {"sequence": 4, "behind": 4}),
    ]:
        gradient, told = worker.push(**how)
        assert told["wide"] == cause
        if cause != NOT_FINITE:
            worker.sender.sent(gradient)
        worker.assert_keeps_what_it_should()
        for name, value in worker.masters().items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)
    row = worker.run.cluster.ledgers(worker.graph.plan)["wide"]
    assert (row[RECEIVED], row[APPLIED]) == (5, 1)
    assert is_balanced(row)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", MOMENTUM)
def test_a_round_is_the_mean_of_what_both_have_sent(optimizer: str) -> None:
    both = workers(optimizer, mode="sync", plan="per-variable", top_k=TOP_K)
    rounds = both[0].graph.rounds
    assert rounds
    expected = np.zeros(WIDTH, np.float32)
    for step in range(STEPS):
        for worker in both:
            gradient, told = worker.push(step + 1)
            assert {told[name] for name in ("wide", "few", "table")} == {PENDING}
            expected -= np.float32(RATE) * worker.sender.sent(gradient) / 2
            worker.assert_keeps_what_it_should()
        closing = rounds.request.values((0, INCARNATION, step + 1, 5), members=2, factor=1 / (2 * BATCH))
        both[0].session.run(rounds.close, {rounds.request.fed: closing})
        np.testing.assert_array_equal(both[1].masters()["wide"], expected)


@dataclass
class Seen:
    """behind: indices that the ps noted since the worker pulled.  values, master: what it sees of the variable."""

    behind: int
    values: Any
    master: Any


def seen(run: Run) -> Seen:
    """Of the variable that is sparsified, after the run."""
    graph = run.graph
    ((name, log),) = graph.model.logs.items()
    with graph.graph.as_default():
        local = {v.op.name: v for v in graph.graph.get_collection(tf1.GraphKeys.LOCAL_VARIABLES)}
        position, ended = local[f"psruntime/position/{name}"].read_value(), log.variables[1].read_value()[1]
        master = graph.model.stores[name].master.read_value()
    with run.cluster.session(graph.graph) as session:
        at, end = session.run([position, ended])
        assert at > 0
        return Seen(end - at, session.run(graph.model.reads["wide"].value), session.run(master)[:WIDTH])


@pytest.mark.long
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_a_worker_has_what_the_ps_have_though_only_changes_travel(optimizer: str, mode: str) -> None:
    """Under Adam all entries change, and travel."""
    run = train(LocalCluster(2), wide_model(OPTIMIZERS[optimizer], 0.01), STEPS, mode=mode, top_k=TOP_K)
    found = seen(run)
    assert found.behind > 0, "the last update came after the last pull"
    assert (found.behind > WIDTH // 4) == (optimizer == "adam")
    np.testing.assert_array_equal(found.values, found.master)
    assert np.any(found.master)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_after_a_ps_is_lost_and_after_a_rollback_nothing_old_is_left_on_a_worker(mode: str, tmp_path: Any) -> None:
    cluster, model = LocalCluster(1), wide_model(OPTIMIZERS["momentum"], 0.01)
    settings = {"mode": mode, "top_k": TOP_K, "checkpoint_dir": str(tmp_path), "save_steps": 2}
    ends = []
    for steps in (3, 4):
        run = train(cluster, model, steps, **settings)
        ends.append(seen(run))
        np.testing.assert_array_equal(ends[-1].values, ends[-1].master)
        cluster.forget(0)
    assert run.named("restored")
    assert np.any(ends[0].master != ends[1].master)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["async", "bounded", "sync"])
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_nearly_all_entries_train_nearly_as_all_do(optimizer: str, mode: str, tmp_path: Any) -> None:
    model = wide_model(OPTIMIZERS[optimizer], 0.01)
    settings = {"mode": mode, "local_steps": 2, "slice_bytes": WIDTH * 4, "plan": "per-variable"}
    settings |= {"bound": 2} if mode == "bounded" else {}
    ends = []
    for name, more in (("all", {}), ("most", {"top_k": 0.98})):  # a hundred of WIDTH stay behind
        run = train(LocalCluster(2), model, 3, checkpoint_dir=str(tmp_path / name), **settings, **more)
        ends.append(run.saved())
    assert ends[0].keys() == ends[1].keys(), "one can go on where the other ended"
    for name in ("few", "table"):
        np.testing.assert_array_equal(ends[1][name], ends[0][name], err_msg=name)
    unlike = ~np.isclose(ends[1]["wide"], ends[0]["wide"], rtol=1e-5, atol=1e-7)
    assert 0 < unlike.sum() <= 300


def test_a_momentum_that_is_no_number_is_refused() -> None:
    model = wide_model(lambda rate: tf1.train.MomentumOptimizer(rate, tf1.constant(0.9)))
    with pytest.raises(UsageError, match="top_k needs a number as the momentum of MomentumOptimizer"):
        train(LocalCluster(1), model, 0, **SETTINGS)


DATA = {
    "normal": lambda random, size: random.normal(size=size),
    "ascending": lambda random, size: np.sort(random.normal(size=size)),
    "mostly zeros": lambda random, size: random.normal(size=size) * (random.random(size) < 0.004),
    "equal": lambda random, size: np.full(size, -2.0),
    "few large ones": lambda random, size: random.normal(size=size) * np.where(np.arange(size) % 64 == 7, 1e6, 1.0),
}


@pytest.mark.parametrize("fraction", [0.9, 0.01, 1e-6])
@pytest.mark.parametrize("size", [4096, 2 * SAMPLED, 40 * SAMPLED])
@pytest.mark.parametrize("kind", DATA)
def test_the_largest_are_found_among_all(kind: str, size: int, fraction: float) -> None:
    values = DATA[kind](np.random.default_rng(1), size).astype(np.float32)
    with tf1.Graph().as_default(), tf1.Session() as session:
        places = session.run(largest(tf1.constant(values), fraction))
    wanted = np.sort(np.abs(values))[::-1][: max(1, round(fraction * size))]
    assert len(set(places)) == len(places)
    np.testing.assert_array_equal(np.sort(np.abs(values[places]))[::-1], wanted[wanted > 0])


def test_of_zeros_nothing_is_sent() -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        assert session.run(largest(tf1.zeros([SAMPLED]), 0.01)).tolist() == []
