"""What a push of a model's own changes makes of the variables on the ps: in rounds, refused, in each dtype.

Workers' steps are run by hand.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import APPLIED, FENCED, NOT_FINITE, PENDING, REPEATED
from psruntime.model import ModelSpec
from tests.graph.model.aggregated_models import SUM, Batches, check, every_kind, own, spec_of
from tests.support.local_cluster import INCARNATION, LocalCluster, graph_of, train
from tests.support.small_models import get, linear, model_of

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
WORKERS = (INCARNATION, 88, 99)  # incarnations, by index


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


@pytest.mark.long
@pytest.mark.parametrize("num_ps", [1, 2])
def test_a_round_has_what_all_its_workers_made(num_ps: int, batches: Batches) -> None:
    with Workers(model_of(every_kind), "sync", 3, num_ps) as workers:
        for worker in (2, 0, 1):
            outcomes = workers.step(worker, batches.arrays(worker), 1, chief=1)
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
            workers.step(worker, batches.arrays(worker), 1)
        for worker in (1, 2):  # worker 0 is lost before the round is closed, and worker 1 is chief
            assert set(workers.again(worker, 2, chief=1).values()) == {PENDING}
        assert set(workers.again(2, 2, chief=1).values()) == {REPEATED}
        workers.close(2, members=2)
        check(workers.values(), joint(batches, 1, 2))


@pytest.mark.long
def test_of_two_chiefs_of_one_attempt_the_later_counts_and_without_one_nothing(batches: Batches) -> None:
    """Worker 0 contributes and is replaced as chief; worker 1 contributes as chief to the same attempt."""
    with Workers(model_of(every_kind), "sync", 3) as workers:
        workers.step(0, batches.arrays(0), 1, chief=0)
        workers.step(1, batches.arrays(1), 1, chief=1)
        workers.step(2, batches.arrays(2), 1, chief=1)
        workers.close(1, members=3)
        expected = joint(batches, 0, 1, 2, chief=1)
        check(workers.values(), expected)
        workers.step(1, batches.arrays(3), 2, chief=0)
        workers.close(2, members=1)
        check(workers.values(), {name: expected[name] for name in ("first", "last")})


@pytest.mark.long
def test_a_round_with_numbers_that_are_not_finite_has_the_others(batches: Batches) -> None:
    bad = batches.arrays(1)
    bad[2] = np.full_like(bad[2], np.nan)
    with Workers(model_of(every_kind), "sync", 2) as workers:
        assert set(workers.step(0, batches.arrays(0), 1).values()) == {PENDING}
        assert set(workers.step(1, bad, 1).values()) - {PENDING} == {NOT_FINITE}
        workers.close(1, members=2)
        check(workers.values(), joint(batches, 0))


def test_a_push_counts_once_and_not_at_all_if_it_is_refused(batches: Batches) -> None:
    with Workers(model_of(every_kind), "async", 2) as workers:
        assert set(workers.step(1, batches.arrays(0), 1).values()) == {APPLIED}
        assert set(workers.step(1, batches.arrays(0), 1).values()) == {REPEATED}
        assert set(workers.step(1, batches.arrays(1), 2, incarnation=5).values()) == {FENCED}
        nan = [*batches.arrays(1)[:2], np.full(8, np.nan, np.float32)]
        assert set(workers.step(1, nan, 3).values()) == {NOT_FINITE}
        check(workers.values(), joint(batches, 0, chief=None))
        assert set(workers.step(0, batches.arrays(1), 1).values()) == {APPLIED}
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
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("name", ["SUM", "MEAN", "ONLY_FIRST_REPLICA"])
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
