"""Variables that the model changes itself and that have an aggregation: what the workers make of them is on the ps.

The reference is numpy: what each batch adds is known.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.ledger import APPLIED, FENCED, NOT_FINITE, PENDING, REPEATED, is_balanced
from psruntime.core.plan.buckets import VariableSpec
from psruntime.errors import UsageError
from psruntime.graph.model.evaluate import CheckpointEvaluation, PulledEvaluation
from psruntime.graph.model.towers import ONE_TOWER, Towers
from psruntime.model import Context, Model, ModelSpec
from tests.support.control_flow import control_flow
from tests.support.local_cluster import INCARNATION, LocalCluster, LocalControlPlane, Run, graph_of, train
from tests.support.round_control_plane import RoundControlPlane
from tests.support.selection import long_but
from tests.support.small_models import ROWS, get, linear, model_of

pytestmark = pytest.mark.usefixtures("graphs_as_built")

SUM, MEAN, FIRST = (getattr(tf1.VariableAggregation, name) for name in ("SUM", "MEAN", "ONLY_FIRST_REPLICA"))
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
WORKERS = (INCARNATION, 88, 99)  # incarnations, by index
TWO = Towers(("cpu:0", "cpu:1"))


def own(name: str, shape: list[int], aggregation: Any, dtype: Any = "float32", **more: Any) -> Any:
    settings = {"trainable": False, "aggregation": aggregation, "initializer": tf1.zeros_initializer(), **more}
    return tf1.get_variable(name, shape, tf1.as_dtype(dtype), **settings)


def spec_of(loss: Any, updates: list[Any]) -> ModelSpec:
    return ModelSpec(loss, tf1.train.GradientDescentOptimizer, 1e-3, updates=updates)


def every_kind(x: Any, y: Any, ids: Any) -> ModelSpec:
    """One of each; the loss reads two of them as they are before the step."""
    counts, steps = own("counts", [ROWS], SUM), own("steps", [], SUM, "int64", use_resource=True)
    centre, average = own("centre", [5], MEAN), own("average", [], MEAN, "float64")
    first, last = own("first", [], FIRST, "int32"), own("last", [2], FIRST)
    batch_mean = tf1.reduce_mean(x, axis=0)
    with tf1.control_dependencies([tf1.identity(counts), tf1.identity(centre)]):
        loss = linear(x, get("kernel", [5, 1]), y) + 0.0 * tf1.reduce_sum(counts) + 0.0 * tf1.reduce_sum(centre)
    with tf1.control_dependencies([loss]):
        updates = [
            tf1.scatter_add(counts, ids, tf1.ones_like(y)),
            tf1.assign(steps, steps + 1),
            centre.assign_add(0.5 * (batch_mean - centre)),
            average.assign(tf1.cast(tf1.reduce_mean(y), tf1.float64)),
            first.assign_add(tf1.reduce_sum(ids)),
            last.assign(y[:2]),
        ]
    return spec_of(loss, updates)


class Batches:
    """Batch `number` of model_of: x float32 [8, 5], y float32 [8], ids int32 [8]."""

    def __init__(self, count: int) -> None:
        with tf1.Graph().as_default(), tf1.Session() as session:
            rows = tf1.stack([tf1.random.stateless_uniform([5], seed=[i, 1]) for i in range(8 * count)])
            self.x = session.run(rows).reshape(count, 8, 5)
        self.y = (self.x * self.x).sum(axis=2)
        self.ids = (np.arange(8 * count) ** 2 % ROWS).reshape(count, 8).astype(np.int32)

    def counts(self, *numbers: int) -> Any:
        return sum(np.bincount(self.ids[number], minlength=ROWS) for number in numbers)

    def arrays(self, run: Run, number: int) -> dict[Any, Any]:
        """As a step of the run is fed them."""
        given = self.ids[number], self.x[number], self.y[number]
        return dict(zip(run.graph.model.batch, given, strict=True))


@pytest.fixture(scope="module")
def batches() -> Batches:
    return Batches(12)


def check(saved: Mapping[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(saved[name], value, rtol=2e-6, err_msg=name)


def of_one_worker(batches: Batches, numbers: range) -> dict[str, Any]:
    centre = np.zeros(5)
    for number in numbers:
        centre += 0.5 * (batches.x[number].mean(axis=0) - centre)
    return {
        "counts": batches.counts(*numbers),
        "steps": len(numbers),
        "centre": centre,
        "average": batches.y[numbers[-1]].mean(),
        "first": sum(int(batches.ids[number].sum()) for number in numbers),
        "last": batches.y[numbers[-1]][:2],
    }


SETTINGS: list[dict[str, Any]] = [
    {"mode": "async"},
    {"mode": "bounded", "bound": 1},
    {"mode": "sync"},
    {"mode": "sync", "wire": "bfloat16"},
    {"mode": "async", "wire": "float16", "top_k": 0.5, "wire_error_feedback": "on"},
    {"mode": "async", "staleness_lr": "inverse"},
]


@pytest.mark.parametrize("settings", long_but([{"mode": "async"}], SETTINGS), ids=str)
def test_what_one_worker_makes_of_them_is_on_the_ps(settings: dict[str, Any], batches: Batches, tmp_path: Any) -> None:
    run = train(LocalCluster(2), model_of(every_kind), 5, checkpoint_dir=str(tmp_path), **settings)
    check(run.saved(), of_one_worker(batches, range(5)))
    for ledger in run.cluster.ledgers(run.graph.plan).values():
        assert is_balanced(ledger)


class Workers:
    """Workers of one job, whose steps are run by hand: each in a session of its own, on the ps of `run`."""

    def __init__(self, model: Any, mode: str, count: int, num_ps: int = 1, **settings: Any) -> None:
        self.run = train(LocalCluster(num_ps), model, 0, mode=mode, **settings)
        self.cluster = self.run.cluster
        self.cluster.fence(dict(enumerate(WORKERS[:count])))
        self.graphs = [self.run.graph, *(graph_of(worker, self.run, model) for worker in range(1, count))]
        self._stack = ExitStack()
        sessions = [self.cluster.session(self.run.graph.graph)]
        sessions += [self.cluster.session_of(worker, self.graphs[worker].graph) for worker in range(1, count)]
        self.sessions = [self._stack.enter_context(session) for session in sessions]

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def step(self, worker: int, arrays: list[Any], sequence: int, chief: int = 0, **request: Any) -> dict[str, int]:
        """Bucket -> what became of the push of a step there."""
        graph = self.graphs[worker]
        push_id = (worker, request.get("incarnation", WORKERS[worker]), sequence, WORKERS[worker])
        feed = dict(zip(graph.model.batch, arrays, strict=True))
        feed[graph.request.fed] = graph.request.values(push_id, is_chief=worker == chief)
        fetched = self.sessions[worker].run(graph.step, feed)
        return self._named(fetched["outcomes"])

    def again(self, worker: int, attempt: int, chief: int = 0) -> dict[str, int]:
        """Contributes what a step has kept."""
        rounds = self.graphs[worker].rounds
        assert rounds is not None
        push_id = (worker, WORKERS[worker], attempt, WORKERS[worker])
        request = rounds.request.values(push_id, scale=8.0, is_chief=worker == chief)
        return self._named(self.sessions[worker].run(rounds.contribute, {rounds.request.fed: request}))

    def close(self, attempt: int, members: int) -> None:
        rounds = self.graphs[0].rounds
        assert rounds is not None
        push_id = (0, WORKERS[0], attempt, WORKERS[0])
        request = rounds.request.values(push_id, members=members, factor=1 / (8 * members))
        self.sessions[0].run(rounds.close, {rounds.request.fed: request})

    def values(self) -> dict[str, Any]:
        stores = self.run.graph.model.stores
        found = {spec.name: stores[spec.name].master for spec in self.run.graph.plan.aggregated}
        return self.sessions[0].run(found)

    def _named(self, outcomes: list[Any]) -> dict[str, int]:
        plan = self.run.graph.plan
        names = [name for ps in range(plan.num_ps) for name in [*(b.name for b in plan.on(ps)), *["global_step"][ps:]]]
        return dict(zip(names, np.concatenate(outcomes)[:, 0].tolist(), strict=True))


def arrays(batches: Batches, number: int) -> list[Any]:
    return [batches.ids[number], batches.x[number], batches.y[number]]


def joint(batches: Batches, *numbers: int, chief: int | None = 0) -> dict[str, Any]:
    """What a first round of these batches makes, that of the chief at this position."""
    first = None if chief is None else numbers[chief]
    return {
        "counts": batches.counts(*numbers),
        "steps": len(numbers),
        "centre": 0.5 * np.mean([batches.x[number].mean(axis=0) for number in numbers], axis=0),
        "average": np.mean([batches.y[number].mean() for number in numbers]),
        "first": 0 if first is None else batches.ids[first].sum(),
        "last": np.zeros(2) if first is None else batches.y[first][:2],
    }


@pytest.mark.parametrize("num_ps", long_but([2], [1, 2]))
def test_a_round_has_what_all_its_workers_made(num_ps: int, batches: Batches) -> None:
    with Workers(model_of(every_kind), "sync", 3, num_ps) as workers:
        for worker in (2, 0, 1):
            outcomes = workers.step(worker, arrays(batches, worker), 1, chief=1)
            assert set(outcomes.values()) == {PENDING}
        check(workers.values(), {name: np.zeros_like(value) for name, value in joint(batches, 0).items()})
        workers.close(1, members=3)
        check(workers.values(), joint(batches, 0, 1, 2, chief=1))
        workers.close(1, members=3)  # by another that does not know of it
        check(workers.values(), joint(batches, 0, 1, 2, chief=1))


@pytest.mark.long
def test_a_round_whose_worker_is_lost_counts_only_those_of_the_next_attempt(batches: Batches) -> None:
    with Workers(model_of(every_kind), "sync", 3) as workers:
        for worker in (0, 1, 2):
            workers.step(worker, arrays(batches, worker), 1)
        for worker in (1, 2):  # worker 0 is lost before the round is closed, and worker 1 is chief
            assert set(workers.again(worker, 2, chief=1).values()) == {PENDING}
        assert set(workers.again(2, 2, chief=1).values()) == {REPEATED}
        workers.close(2, members=2)
        check(workers.values(), joint(batches, 1, 2))


@pytest.mark.long
def test_of_two_chiefs_of_one_attempt_the_later_counts_and_without_one_nothing(batches: Batches) -> None:
    """Worker 0 contributes and is replaced as chief; worker 1 contributes as chief to the same attempt."""
    with Workers(model_of(every_kind), "sync", 3) as workers:
        workers.step(0, arrays(batches, 0), 1, chief=0)
        workers.step(1, arrays(batches, 1), 1, chief=1)
        workers.step(2, arrays(batches, 2), 1, chief=1)
        workers.close(1, members=3)
        expected = joint(batches, 0, 1, 2, chief=1)
        check(workers.values(), expected)
        workers.step(1, arrays(batches, 3), 2, chief=0)
        workers.close(2, members=1)
        check(workers.values(), {name: expected[name] for name in ("first", "last")})


@pytest.mark.long
def test_a_round_with_numbers_that_are_not_finite_has_the_others(batches: Batches) -> None:
    bad = arrays(batches, 1)
    bad[2] = np.full_like(bad[2], np.nan)
    with Workers(model_of(every_kind), "sync", 2) as workers:
        assert set(workers.step(0, arrays(batches, 0), 1).values()) == {PENDING}
        assert set(workers.step(1, bad, 1).values()) - {PENDING} == {NOT_FINITE}
        workers.close(1, members=2)
        check(workers.values(), joint(batches, 0))


def test_a_push_counts_once_and_not_at_all_if_it_is_refused(batches: Batches) -> None:
    with Workers(model_of(every_kind), "async", 2) as workers:
        assert set(workers.step(1, arrays(batches, 0), 1).values()) == {APPLIED}
        assert set(workers.step(1, arrays(batches, 0), 1).values()) == {REPEATED}
        assert set(workers.step(1, arrays(batches, 1), 2, incarnation=5).values()) == {FENCED}
        nan = [*arrays(batches, 1)[:2], np.full(8, np.nan, np.float32)]
        assert set(workers.step(1, nan, 3).values()) == {NOT_FINITE}
        check(workers.values(), joint(batches, 0, chief=None))
        assert set(workers.step(0, arrays(batches, 1), 1).values()) == {APPLIED}
        check(workers.values(), {"counts": batches.counts(0, 1), "steps": 2, "average": batches.y[1].mean()})
        check(workers.values(), {name: joint(batches, 1)[name] for name in ("first", "last")})


def test_a_change_that_is_not_finite_keeps_the_push_out(batches: Batches) -> None:
    def build(x: Any, y: Any, ids: Any) -> ModelSpec:
        codes = own("codes", [2], SUM)
        loss = linear(x, get("kernel", [5, 1]), y)
        return spec_of(loss, [codes.assign_add(tf1.where(tf1.equal(ids[0], 1), [np.inf, 1.0], [1.0, 1.0]))])

    with Workers(model_of(build), "async", 1) as workers:
        for sequence, number in enumerate((0, 1), start=1):
            ids = np.full(8, number, np.int32)
            outcomes = workers.step(0, [ids, batches.x[0], batches.y[0]], sequence)
            assert set(outcomes.values()) == {NOT_FINITE if number else APPLIED}
        check(workers.values(), {"codes": [1, 1]})


@pytest.mark.long
@pytest.mark.parametrize("mode", long_but(["sync"], ["async", "sync"]))
@pytest.mark.parametrize("name", long_but(["SUM"], ["SUM", "MEAN", "ONLY_FIRST_REPLICA"]))
def test_each_dtype_that_an_aggregation_takes_is_exact(name: str, mode: str, batches: Batches) -> None:
    """Integers wrap around as they do in TensorFlow."""
    dtypes = [*FLOATS, *(INTEGERS if name != "MEAN" else [])]
    begin = {dtype: 100 if dtype == "int8" else 250 if dtype == "uint8" else 3 for dtype in dtypes}

    def build(x: Any, y: Any, ids: Any) -> ModelSpec:
        aggregation, updates = getattr(tf1.VariableAggregation, name), []
        for dtype in dtypes:
            initial = tf1.constant_initializer(begin[dtype])
            variable = own(f"of_{dtype}", [3], aggregation, dtype, initializer=initial)
            step = tf1.cast(tf1.fill([3], ids[0]), variable.dtype)
            updates += [tf1.assign_sub(variable, step) if "float" in dtype else tf1.assign_add(variable, step)]
        return spec_of(linear(x, get("kernel", [5, 1]), y), updates)

    with Workers(model_of(build), mode, 2) as workers:
        for worker, step in ((0, 2), (1, 4)):
            ids = np.full(8, step, np.int32)
            workers.step(worker, [ids, batches.x[0], batches.y[0]], 1)
        if mode == "sync":
            workers.close(1, members=2)
        change = {"SUM": 6, "MEAN": 3 if mode == "sync" else 6, "ONLY_FIRST_REPLICA": 2}[name]
        for dtype, value in workers.values().items():
            dtype = dtype.removeprefix("of_")
            after = begin[dtype] + (-change if "float" in dtype else change)
            wide = np.asarray(value, np.float64) if "float" in dtype else value
            expected = np.full(3, after, np.float64 if "float" in dtype else np.int64).astype(wide.dtype)
            np.testing.assert_array_equal(wide, expected, err_msg=dtype)


@pytest.mark.parametrize("mode", long_but(["sync"], ["async", "sync"]))
@pytest.mark.parametrize("towers", long_but([TWO], [ONE_TOWER, TWO]), ids=["one device", "two devices"])
def test_mini_batches_change_them_one_after_the_other(
    towers: Towers, mode: str, batches: Batches, tmp_path: Any
) -> None:
    """A step has four; what is assigned is what the last one assigns."""
    settings = {"local_steps": 4 // towers.count, "mode": mode, "checkpoint_dir": str(tmp_path)}
    cluster = LocalCluster(2, cpus=towers.cpus)
    run = train(cluster, model_of(every_kind), 3, towers=towers, **settings)
    check(run.saved(), {**of_one_worker(batches, range(12)), "steps": 12})


def test_the_steps_of_a_pipeline_change_them_one_after_the_other(tmp_path: Any) -> None:
    """Nothing is lost or counted twice, though up to three steps are under way."""

    def build(x: Any, y: Any, ids: Any) -> ModelSpec:
        counts, steps, first = own("counts", [ROWS], SUM), own("steps", [], MEAN), own("first", [], FIRST, "int64")
        seen = tf1.numpy_function(pause, [tf1.reduce_sum(x)], tf1.float32)  # between a read and the change
        with tf1.control_dependencies([steps.read_value(), tf1.identity(counts)]):
            late = tf1.identity(tf1.reshape(seen, []))
        with tf1.control_dependencies([late]):
            changes = [tf1.scatter_add(counts, ids, tf1.ones_like(y)), steps.assign(steps + 1), first.assign(first + 1)]
        return spec_of(linear(x, get("kernel", [5, 1]), y), changes)

    def pause(value: Any) -> Any:
        time.sleep(0.005)  # a step is that long, so that others are under way
        return value

    run = train(LocalCluster(2), model_of(build), 60, pipeline=3, checkpoint_dir=str(tmp_path))
    saved = run.saved()
    assert (saved["counts"].sum(), saved["steps"], saved["first"]) == (60 * 8, 60, 60)


@pytest.mark.long
@pytest.mark.parametrize("modes", ["async sync", "sync async"])
def test_they_outlive_a_change_of_mode_and_a_restart(modes: str, batches: Batches, tmp_path: Any) -> None:
    mode, other = modes.split()
    cluster, settings = LocalCluster(2), {"checkpoint_dir": str(tmp_path / "saved"), "save_steps": 1000}
    train(cluster, model_of(every_kind), 3, mode=mode, **settings)
    adopted = train(cluster, skipping(3), 2, mode=other, **settings)
    assert adopted.named("adopted")
    check(adopted.saved(), of_one_worker(batches, range(5)))
    restored = train(LocalCluster(3), skipping(5), 2, mode=mode, **settings)
    assert restored.named("restored")
    check(restored.saved(), of_one_worker(batches, range(7)))


def skipping(count: int) -> Model:
    model = model_of(every_kind)
    return Model(model.name, lambda context: model.input_fn(context).skip(count), model.model_fn)


@pytest.mark.parametrize("lost", long_but([1], [0, 1]))
def test_those_of_a_lost_ps_come_back_from_its_copy_and_the_others_stay(lost: int, batches: Batches) -> None:
    """Copies at steps 1 and 4; at step 5 a ps is lost."""
    cluster = LocalCluster(2)
    first = train(cluster, model_of(every_kind), 5, replicate_every=3)
    ps_of = {bucket.name: bucket.ps for bucket in first.graph.plan.buckets}
    cluster.forget(lost)
    cluster.fence({0: INCARNATION + 1})
    second = train(
        cluster,
        model_of(every_kind),
        0,
        make_control_plane=lambda view, count: LocalControlPlane(view, count, INCARNATION + 1),
        replicate_every=3,
    )
    assert [event["replica"] for event in second.named("restored")] == [4]
    with cluster.session(second.graph.graph) as session:
        live = session.run({name: store.master for name, store in second.graph.model.stores.items()})
    expected = {ps: of_one_worker(batches, range(4 if ps == lost else 5)) for ps in (0, 1)}
    assert {ps_of[name] for name in expected[0]} == {0, 1}
    check(live, {name: expected[ps_of[name]][name] for name in expected[0]})


@pytest.mark.parametrize("kind", long_but(["pulled"], ["pulled", "checkpoint"]))
def test_evaluation_reads_what_is_on_the_ps_and_leaves_it(kind: str, batches: Batches, tmp_path: Any) -> None:
    cluster = LocalCluster(2)
    run = train(cluster, model_of(every_kind), 3, checkpoint_dir=str(tmp_path))

    def counting(features: Any, labels: Any, mode: str) -> ModelSpec:
        """Of the ps its loss changes what it reads, also in evaluation."""
        counts = own("counts", [ROWS], SUM)
        for name, shape, dtype in (("steps", [], "int64"), ("centre", [5], "float32"), ("average", [], "float64")):
            own(name, shape, SUM, dtype)
        own("first", [], FIRST, "int32"), own("last", [2], FIRST)
        loss = linear(features["x"], get("kernel", [5, 1]), labels)
        with tf1.control_dependencies([counts.assign_add(tf1.ones([ROWS]))] if kind == "pulled" else []):
            seen = tf1.reduce_sum(counts.read_value())
        return ModelSpec(loss, tf1.train.AdagradOptimizer, 0.1, metrics={"seen": tf1.metrics.mean(seen)})

    model = Model("tests.table", lambda context: model_of(every_kind).input_fn(context).take(4), counting)
    context = Context("eval", 0, 1, 8, "", 3)
    if kind == "pulled":
        evaluation = PulledEvaluation(model, context, run.graph.plan, cluster.max_workers)
        with cluster.session(evaluation.graph) as session:
            seen = evaluation.measure(session)["seen"]
    else:
        seen = CheckpointEvaluation(model, context).measure(run.checkpoints.latest())["seen"]
    assert seen == 24 + (ROWS if kind == "pulled" else 0), "each batch begins with what is on the ps"
    check(
        train(cluster, model_of(every_kind), 0, checkpoint_dir=str(tmp_path)).saved(), of_one_worker(batches, range(3))
    )


@pytest.mark.long
def test_a_local_stage_adds_what_each_step_made(batches: Batches, tmp_path: Any) -> None:
    """Two rounds, a local stage of three steps, a round."""
    run = train(
        LocalCluster(2), model_of(every_kind), 6, make_control_plane=RoundControlPlane,
        schedule="sync:2, local:3, sync", checkpoint_dir=str(tmp_path),
    )  # fmt: skip
    assert run.named("local_ended")
    check(run.saved(), of_one_worker(batches, range(6)))


def in_function(variable: Any) -> Any:
    @tf1.function
    def change(by: Any) -> Any:
        variable.assign_add(by)
        return variable.read_value()

    return change(2.0)


def in_loop(variable: Any) -> Any:
    def body(i: Any) -> Any:
        with tf1.control_dependencies([variable.assign_add(1.0)]):
            return i + 1

    return tf1.while_loop(lambda i: i < 2, body, [0])


def in_branch(variable: Any) -> Any:
    return tf1.cond(tf1.equal(1, tf1.size(variable)), lambda: variable.assign_add(2.0), lambda: tf1.constant(0.0))


@pytest.mark.parametrize("v2", long_but([True], [True, False]), ids=["v2", "v1"])
@pytest.mark.parametrize("way", long_but([in_loop], [in_function, in_loop, in_branch]), ids=lambda way: way.__name__)
def test_they_may_be_changed_in_functions_loops_and_branches(way: Any, v2: bool, tmp_path: Any) -> None:
    def build(x: Any, y: Any, ids: Any) -> ModelSpec:
        total = own("total", [], SUM)
        return spec_of(linear(x, get("kernel", [5, 1]), y), [way(total)])

    with control_flow(v2):
        for local_steps in (1, 2):
            folder = str(tmp_path / str(local_steps))
            run = train(LocalCluster(1), model_of(build), 3, checkpoint_dir=folder, local_steps=local_steps)
            assert run.saved()["total"] == 6.0 * local_steps


@pytest.mark.parametrize("v2", long_but([True], [True, False]), ids=["v2", "v1"])
def test_an_assignment_in_a_branch_is_a_change(v2: bool, tmp_path: Any) -> None:
    """In a step that does not take it the worker has no value of its own."""

    def build(x: Any, y: Any, ids: Any) -> ModelSpec:
        total, step = own("total", [], SUM), tf1.train.get_or_create_global_step()
        is_first = tf1.equal(step, 0)
        change = tf1.cond(is_first, lambda: tf1.identity(total.assign(5.0)), lambda: tf1.constant(0.0))
        return spec_of(linear(x, get("kernel", [5, 1]), y), [change])

    with control_flow(v2):
        run = train(LocalCluster(1), model_of(build), 3, checkpoint_dir=str(tmp_path))
        assert not run.graph.model.aggregated.copies["total"].is_assigned(set(run.graph.graph.get_operations()))
        assert run.saved()["total"] == 5.0


def test_what_no_aggregation_changes() -> None:
    """A trainable variable; a table that is only looked up; one that the model leaves; averages of layers; a part."""

    def build(x: Any, y: Any, ids: Any) -> ModelSpec:
        kernel = get("kernel", [5, 1], aggregation=SUM)
        table = own("table", [ROWS, 5], MEAN)
        unread = own("unread", [2], SUM)
        on_read = own("on_read", [], MEAN, synchronization=tf1.VariableSynchronization.ON_READ)
        total = own("total", [], SUM, synchronization=tf1.VariableSynchronization.ON_READ)
        parts = own("parts", [4, 2], SUM, partitioner=tf1.fixed_size_partitioner(2))
        loss = linear(x + tf1.gather(table, ids), kernel, y)
        changes = [
            on_read.assign_add(1.0),
            total.assign_add(1.0),
            *(part.assign_add(tf1.ones([2, 2])) for part in parts),
        ]
        return spec_of(loss + unread[0], changes)

    run = train(LocalCluster(1), model_of(build), 1)
    fixed = {"trainable": False}
    assert run.graph.plan.specs == (
        VariableSpec("kernel", (5, 1), "float32", group=1),
        VariableSpec("table", (ROWS, 5), "float32", sparse=True, **fixed),
        VariableSpec("unread", (2,), "float32", **fixed),
        VariableSpec("on_read", (), "float32", **fixed),
        VariableSpec("total", (), "float32", aggregation="SUM", **fixed),
        VariableSpec("parts/part_0", (2, 2), "float32", aggregation="SUM", **fixed),
        VariableSpec("parts/part_1", (2, 2), "float32", aggregation="SUM", **fixed),
    )


def test_no_variable_begins_with_what_such_a_one_is_by_then() -> None:
    def build(x: Any, y: Any, ids: Any) -> ModelSpec:
        total = own("total", [], SUM)
        kernel = tf1.get_variable("kernel", initializer=lambda: tf1.fill([5, 1], total.read_value()))
        return spec_of(linear(x, kernel, y), [total.assign_add(1.0)])

    with pytest.raises(UsageError, match="kernel is initialised from the value of variable total"):
        train(LocalCluster(1), model_of(build), 1)


def test_a_local_stage_refuses_a_sum_of_assigned_values() -> None:
    def build(x: Any, y: Any, ids: Any) -> ModelSpec:
        return spec_of(linear(x, get("kernel", [5, 1]), y), [own("seen", [], SUM).assign(y[0])])

    with pytest.raises(UsageError, match="assigns values to variable seen, whose aggregation is SUM"):
        train(LocalCluster(1), model_of(build), 1, mode="sync", schedule="local:3, sync")


def test_a_fetch_of_one_is_what_the_step_began_with_and_unmoved_ones_are_named() -> None:
    class Reading(tf1.train.SessionRunHook):  # type: ignore[misc]
        seen: list[Any] = []

        def before_run(self, _: Any) -> Any:
            return tf1.train.SessionRunArgs(self.total)

        def after_run(self, context: Any, values: Any) -> None:
            self.seen.append((float(values.results), float(context.session.run(self.total))))

    reading = Reading()

    def build(x: Any, y: Any, ids: Any) -> ModelSpec:
        reading.total = own("total", [], SUM)
        own("unmoved", [], SUM).assign_add(1.0)
        loss = linear(x, get("kernel", [5, 1]), y)
        return ModelSpec(
            loss, tf1.train.AdagradOptimizer, 0.1, updates=[reading.total.assign_add(1.0)], hooks=[reading]
        )

    run = train(LocalCluster(1), model_of(build), 3)
    assert Reading.seen == [(0, 1), (1, 2), (2, 3)]
    assert run.graph.unmoved == ["unmoved"]


FAILING: list[dict[str, Any]] = [{"mode": "async"}, {"mode": "sync"}, {"pipeline": 3}, {"local_steps": 2}]


@pytest.mark.parametrize("settings", long_but([{"mode": "sync"}], FAILING), ids=str)
def test_a_step_that_fails_after_its_change_leaves_nothing_of_it(settings: dict[str, Any], tmp_path: Any) -> None:
    """Batches whose first id is 1 fail, twice each, and are passed over; those after them are as before."""

    def build(x: Any, y: Any, ids: Any) -> ModelSpec:
        counts, steps = own("counts", [ROWS], SUM), own("steps", [], SUM, "int64")
        change = [tf1.scatter_add(counts, ids, tf1.ones_like(y)), steps.assign_add(1)]
        with tf1.control_dependencies(change):
            checked = tf1.debugging.assert_none_equal(ids[0], 1)
        return spec_of(linear(x, get("kernel", [5, 1]), y), [checked])

    run = train(LocalCluster(1), model_of(build), 6, on_data_error="skip", checkpoint_dir=str(tmp_path), **settings)
    saved = run.saved()
    assert run.skipped and saved["counts"].sum() == 8 * saved["steps"]
    assert saved["steps"] == 6 * settings.get("local_steps", 1)
