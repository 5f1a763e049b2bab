"""How many tensors a step moves between processes: exact counts, in the graphs as TensorFlow partitioned them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from benchmarks.receives import receives
from psruntime.config import JobConfig
from psruntime.core.plan.plan import make_plan, report
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.pulled_model import record_specs
from psruntime.model import Context, Model
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.graph.step.test_top_k import wide_model
from tests.support.embedding_model import embedding_model
from tests.support.local_cluster import INCARNATION, LocalCluster, Run, linear_model, train, with_spec
from tests.support.selection import long_but

pytestmark = pytest.mark.optimised

PS = 2
BUCKETS = 3  # of the linear model, one a variable


def counts(run: Run, model: Model, fetches: Any, feed: dict[Any, Any], with_batch: bool) -> dict[str, int]:
    """Of one run, which is done."""
    if with_batch:
        batch = InputStream(model, Context("train", 0, 1, 8, "", 3), run.job.local_steps).draw_endlessly()
        feed = {**feed, **dict(zip(run.graph.model.batch, batch, strict=True))}
    told = tf1.RunMetadata()
    with run.cluster.session(run.graph.graph) as session:
        session.run(fetches, feed, options=tf1.RunOptions(output_partition_graphs=True), run_metadata=told)
    return dict(receives(told.partition_graphs))


def decaying(step: int) -> float:
    return 0.1 * 0.9**step


@pytest.mark.parametrize("plan", long_but(["packed"], ["packed", "per-variable"]))
@pytest.mark.parametrize(
    ("optimizer", "rate"),
    [
        pytest.param("sgd", 0.1, marks=pytest.mark.long),
        ("adam", decaying),
        pytest.param("ftrl", 0.1, marks=pytest.mark.long),
    ],
    ids=["sgd", "adam-decaying", "ftrl"],
)
def test_a_step_moves_each_bucket_twice_and_one_message_each_way(optimizer: str, rate: Any, plan: str) -> None:
    """Nothing goes from ps to ps, whatever the optimizer keeps and however its rate changes."""
    model = linear_model(OPTIMIZERS[optimizer], rate)
    run = train(LocalCluster(PS), model, 1, plan=plan)
    buckets = len(run.graph.plan.buckets)
    assert buckets == (PS if plan == "packed" else BUCKETS)
    feed = {run.graph.request.fed: run.graph.request.values((0, INCARNATION, 100, 1))}
    assert counts(run, model, run.graph.step, feed, with_batch=True) == {
        "ps to worker": buckets + PS,  # and what became of the push, of each ps
        "worker to ps": buckets + PS,  # and the header
    }


@pytest.mark.parametrize("clip", long_but([{}], [{}, {"clip_norm": 1.0}]))
def test_the_runs_of_a_round(clip: dict[str, float]) -> None:
    model = linear_model(partial(tf1.train.AdamOptimizer, epsilon=1e-3))
    model = with_spec(model, **clip)
    run = train(LocalCluster(PS), model, 1, mode="sync")
    rounds = run.graph.rounds
    assert rounds
    push_id = (0, INCARNATION, 100, 1)
    feed = {run.graph.request.fed: run.graph.request.values(push_id), run.graph.mean_divisor: 2.0}
    step = counts(run, model, run.graph.step, feed, with_batch=True)
    assert step == {"ps to worker": 2 * PS, "worker to ps": 3 * PS}, "a bucket each, outcomes, what to close, header"
    request = {rounds.request.fed: rounds.request.values(push_id, members=1, factor=1.0)}
    pushed = counts(run, model, rounds.contribute, request, with_batch=False)
    assert pushed == {"worker to ps": 2 * PS, "ps to worker": PS}
    assert counts(run, model, rounds.close, request, with_batch=False) == {"worker to ps": PS, "ps to worker": PS}


@pytest.mark.parametrize("num_ps", long_but([4], [1, 4]))  # of four some have nothing
def test_the_report_of_a_plan_says_as_many(num_ps: int) -> None:
    model = linear_model(OPTIMIZERS["adam"])
    assert step_of(train(LocalCluster(num_ps), model, 1), model) == report_of(model, num_ps)


@pytest.mark.long
def test_where_the_largest_entries_are_sent_the_report_counts_where_they_are() -> None:
    model = wide_model(OPTIMIZERS["momentum"])
    run = train(LocalCluster(PS), model, 1, top_k=0.01)
    assert step_of(run, model) == report(run.graph.plan, is_sparsified=True).tensors > report(run.graph.plan).tensors


@pytest.mark.long
@pytest.mark.parametrize(("plan", "more"), [("packed", 0), ("per-variable", 2)])
def test_of_a_table_the_report_counts_one_lookup(plan: str, more: int) -> None:
    """The model looks one of its tables up twice: of one that is whole on a ps ids go once more, and rows come."""
    model = embedding_model(OPTIMIZERS["adam"])
    assert step_of(train(LocalCluster(PS), model, 1, plan=plan), model) == report_of(model, PS, plan) + more


def step_of(run: Run, model: Model) -> int:
    feed = {run.graph.request.fed: run.graph.request.values((0, INCARNATION, 100, 1))}
    return sum(counts(run, model, run.graph.step, feed, with_batch=True).values())


def report_of(model: Model, num_ps: int, plan: str = "packed") -> int:
    inputs = InputStream(model, Context("train", 0, 1, 8, "", 3))
    job = JobConfig(ps=num_ps, plan=plan)
    return report(make_plan(record_specs(model, inputs, "train"), num_ps, *job.plan_sizes)).tensors
