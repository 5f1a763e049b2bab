"""What a worker tells of its updates, of which its record is made: each once, with its number, loss and outcome."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import word_of
from tests.support.local_cluster import LocalCluster, Run, linear_model, train, with_spec
from tests.support.selection import long_but

MODEL = linear_model(tf1.train.GradientDescentOptimizer)
STEPS, BATCH = 5, 8


def numbers(run: Run) -> list[tuple[int, int]]:
    return [(update.push, update.global_step) for update in run.updates]


@pytest.mark.parametrize(
    "settings", long_but([{"pipeline": 3}], [{}, {"mode": "bounded", "bound": 1}, {"pipeline": 3}])
)
def test_each_step_once(settings: dict[str, Any]) -> None:
    run = train(LocalCluster(2), MODEL, STEPS, slice_bytes=64, **settings)
    assert [push for push, _ in numbers(run)] == list(range(1, STEPS + 1))
    assert sorted(step for _, step in numbers(run))[-1] == STEPS
    assert {update.view for update in run.updates} == {word_of(run.cluster.view)}
    assert [(u.loss, u.examples) for u in run.updates] == [(r.loss, BATCH) for r in run.results]
    buckets = len(run.graph.plan.buckets)
    for update in run.updates:
        assert (update.outcome.name, update.outcome.applied, update.outcome.dropped) == ("applied", buckets, 0)
        assert update.outcome.weight == 1.0 and update.outcome.staleness is not None
        assert 0 <= update.waited_s < 60


def test_each_round_once() -> None:
    run = train(LocalCluster(2), MODEL, STEPS, slice_bytes=64, mode="sync")
    assert [step for _, step in numbers(run)] == list(range(1, STEPS + 1))
    assert [u.loss for u in run.updates] == [r.loss for r in run.results]
    buckets = len(run.graph.plan.buckets)
    assert {(u.outcome.name, u.outcome.applied, u.outcome.staleness, u.outcome.weight) for u in run.updates} == {
        ("contributed", buckets, 0, 1.0)
    }


def test_what_is_not_finite_says_so() -> None:
    spoilt = with_spec(MODEL, learning_rate=1e30)  # the second step's loss overflows
    run = train(LocalCluster(1), spoilt, 3, on_nan="continue")
    assert [update.outcome.name for update in run.updates] == ["applied", "not_finite", "not_finite"]
    assert (run.updates[1].outcome.applied, run.updates[1].outcome.weight) == (0, None)
