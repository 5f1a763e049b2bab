"""Dynamic tables are what a dictionary in Python is: which ids have rows, what these hold, and what was counted."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

import psruntime
from psruntime.core.members.messages import PsStats, RowCounts
from psruntime.graph.embedding.dynamic_table import NO_ID, initial_rows
from psruntime.graph.model.evaluate import CheckpointEvaluation, PulledEvaluation
from psruntime.graph.session.ps_state import LedgerReader
from psruntime.model import Context, ModelSpec
from psruntime.optimizers import LazyAdam, RowwiseAdagrad
from tests.support.dynamic_reference import WIDTH, DynamicReference, dynamic_model, skewed_ids
from tests.support.local_cluster import LocalCluster, Run, train

BATCH, IDS, STEPS, SETS = 8, 20, 60, 3
SEEDED = tf1.random_uniform_initializer(-0.5, 0.5, seed=4)


def data(seed: int = 1) -> tuple[Any, Any]:
    ids = skewed_ids(seed, (BATCH * STEPS, IDS))
    return ids, np.random.RandomState(seed).standard_normal(len(ids)).astype(np.float32)


def reference(ids: Any, labels: Any, steps: int = STEPS, batch: int = BATCH, **settings: Any) -> DynamicReference:
    known = DynamicReference(SETS, initial_rows(SEEDED, "table", None), **settings)
    for step in range(steps):
        part = slice(step * batch, (step + 1) * batch)
        known.step(ids[part], labels[part])
    return known


def assert_equal(saved: dict[str, Any], known: DynamicReference, tolerance: float = 1e-5) -> None:
    """Ids, counts and times are the same; numbers agree, relative to the largest of their kind."""
    assert saved["table"].shape == (len(known.sets), 32, WIDTH)
    largest = np.abs(saved["table"]).max()
    for number, place in enumerate(known.sets):
        assert [each if each != NO_ID else None for each in saved["table/ids"][number].tolist()] == place.ways
        for way, of in enumerate(place.ways):
            if of is None:
                continue
            row = place.rows[of]
            idle, seen = saved["table/idle"][number, way], saved["table/seen"][number, way]
            assert (idle, seen) == (known.clock - row.used, row.seen)
            np.testing.assert_allclose(saved["table"][number, way], row.values, rtol=0, atol=tolerance * largest)
            np.testing.assert_allclose(saved["table/Adagrad"][number, way], row.accumulator, rtol=tolerance)
        if place.waiting or "table/candidate_ids" in saved:
            candidates = saved["table/candidate_ids"][number].tolist()
            assert [each if each != NO_ID else None for each in candidates] == place.candidates
    assert saved["table/counts"].sum(axis=0).tolist() == list(known.counts.values())


SETTINGS = {
    "as it comes": {},
    "seen three times": {"admit_after": 3},
    "expires": {"expire_after": 9},
    "both": {"admit_after": 2, "expire_after": 9},
}


def model_of(ids: Any, labels: Any, admit_after: int = 1, expire_after: int = 0, **more: Any) -> Any:
    table = {"capacity": SETS * 32, "admit_after": admit_after, "expire_after_steps": expire_after, **more}
    return dynamic_model(ids, labels, initializer=SEEDED, **table)


def stats_of(run: Run, ps: int) -> PsStats:
    server, _ = run.cluster.ps[ps]
    return LedgerReader(server.target, ps, run.graph.plan, run.cluster.max_workers).read()[0]


@pytest.mark.long
@pytest.mark.parametrize("num_ps", [1, 2, 3])
@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.optimised
def test_a_table_is_what_a_dictionary_is(how: str, num_ps: int, tmp_path: Any) -> None:
    ids, labels, settings = *data(), SETTINGS[how]
    run = train(LocalCluster(num_ps), model_of(ids, labels, **settings), STEPS, checkpoint_dir=str(tmp_path))
    known = reference(ids, labels, **settings)
    assert_equal(run.saved(), known)
    counts = known.counts
    assert counts["found"] and counts["admitted"], "the test shows nothing otherwise"
    assert counts["evicted"] or counts["expired"] or counts["refused"] > counts["admitted"]
    assert all(result.dropped == 0 for result in run.results)
    told = [counts for ps in range(num_ps) for counts in stats_of(run, ps).row_counts]
    summed = reduce(RowCounts.plus, told)
    assert summed == RowCounts("table", SETS * 32, **counts)
    assert summed.known == sum(len(place.rows) for place in known.sets)


@pytest.mark.long
@pytest.mark.optimised
def test_a_round_is_an_update_by_the_joint_batch(tmp_path: Any) -> None:
    ids, labels = data()
    run = train(LocalCluster(2), model_of(ids, labels, 2, 9), STEPS, mode="sync", checkpoint_dir=str(tmp_path))
    assert_equal(run.saved(), reference(ids, labels, admit_after=2, expire_after=9, in_order=sorted))


@pytest.mark.long
@pytest.mark.optimised
def test_the_minibatches_of_a_step_are_one_update(tmp_path: Any) -> None:
    ids, labels = data()
    run = train(LocalCluster(2), model_of(ids, labels, 2), STEPS // 2, local_steps=2, checkpoint_dir=str(tmp_path))
    known = reference(ids, labels, STEPS // 2, 2 * BATCH, admit_after=2, in_order=sorted)
    assert_equal(run.saved(), known)


@pytest.mark.long
@pytest.mark.parametrize("every_ps", [(2, 3), (3, 1), (1, 2)])
def test_a_checkpoint_is_restored_on_another_number_of_ps(every_ps: tuple[int, int], tmp_path: Any) -> None:
    before, after = every_ps
    ids, labels = data()
    half = STEPS // 2 * BATCH
    first, second = (model_of(*of, 2, 30) for of in ((ids[:half], labels[:half]), (ids[half:], labels[half:])))
    train(LocalCluster(before), first, STEPS // 2, checkpoint_dir=str(tmp_path))
    run = train(LocalCluster(after), second, STEPS // 2, checkpoint_dir=str(tmp_path))
    assert_equal(run.saved(), reference(ids, labels, admit_after=2, expire_after=30))


@pytest.mark.long
def test_an_evaluation_reads_initial_rows_of_ids_without_one(tmp_path: Any) -> None:
    ids, labels = data()
    cluster, model = LocalCluster(2), model_of(ids, labels, 3, 20)
    run = train(cluster, model, STEPS, checkpoint_dir=str(tmp_path))
    known, context = reference(ids, labels, admit_after=3, expire_after=20), Context("eval", 0, 1, BATCH, "", 3)
    expected = np.mean([known.read(example).sum() for example in ids])
    evaluation = PulledEvaluation(model, context, run.graph.plan, cluster.max_workers)
    with cluster.session(evaluation.graph) as session:
        assert evaluation.measure(session)["mean"] == pytest.approx(expected, abs=1e-4)
    of_checkpoint = CheckpointEvaluation(model, context).measure(str(run.checkpoints.latest()))
    assert of_checkpoint["mean"] == pytest.approx(expected, abs=1e-4)


OPTIMIZERS = [LazyAdam, tf1.train.FtrlOptimizer, tf1.train.AdamOptimizer, RowwiseAdagrad]


@pytest.mark.long
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_row_that_is_given_to_another_id_begins_with_fresh_slots(optimizer: Any, tmp_path: Any) -> None:
    """With two tables, of which one is not trained; each id is alone in the table once it is admitted."""
    count = 4 * 32 * SETS
    ids = skewed_ids(2, (count, 1), 1.01) + np.arange(count)[:, None] * 7919

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        rows = [psruntime.embedding(features, name, WIDTH, capacity=SETS * 32, initializer=0.5) for name in ("a", "b")]
        frozen = psruntime.embedding(features, "frozen", WIDTH, capacity=64)
        loss = tf1.reduce_sum(tf1.square(tf1.add_n([*rows, tf1.stop_gradient(frozen)]) - 2))
        return ModelSpec(loss, optimizer, 0.1)

    model = replace(dynamic_model(ids, np.zeros(count, np.float32), capacity=1), model_fn=model_fn)
    run = train(LocalCluster(2), model, count // BATCH, checkpoint_dir=str(tmp_path))
    saved = run.saved()
    assert saved["a/counts"].sum(axis=0)[4] > 0, "evicted"
    assert saved["frozen/ids"].max() == NO_ID, "no id was given a row"
    first = train(LocalCluster(2), replace(model, model_fn=model_fn), 1, checkpoint_dir=str(tmp_path / "first")).saved()
    slots = [name for name in first if re.fullmatch(r"a/\w+", name) and first[name].shape[:2] == (SETS, 32)]
    slots = [name for name in slots if first[name].dtype == np.float32]
    assert slots, "an optimizer without slots shows nothing"
    for name in slots:
        held, taken = saved[name][saved["a/ids"] != NO_ID], first[name][first["a/ids"] != NO_ID]
        span = np.abs(taken).max()
        assert np.abs(held).max() <= 1.3 * span, f"{name} has been added to by other ids"


@pytest.mark.long
def test_ages_outlast_the_loss_of_a_ps(tmp_path: Any) -> None:
    """Each ps counts the updates that it has; what was used when is the same for all in a checkpoint."""
    ids, labels = data()
    cluster = LocalCluster(2)
    train(cluster, model_of(ids, labels), 10, checkpoint_dir=str(tmp_path))
    live = train(cluster, model_of(ids[80:], labels[80:]), 40, checkpoint_dir="", on_ps_loss="partial")
    assert live.results
    cluster.forget(1)
    run = train(cluster, model_of(ids[400:], labels[400:]), 2, checkpoint_dir=str(tmp_path), on_ps_loss="partial")
    saved = run.saved()
    taken = saved["table/ids"] != NO_ID
    assert saved["table/idle"][taken].min() == 0 and (saved["table/idle"][taken] >= 0).all()
    again = train(LocalCluster(2), model_of(ids[416:], labels[416:], 1, 50), 1, checkpoint_dir=str(tmp_path)).saved()
    kept = taken & (saved["table/ids"] == again["table/ids"])
    unused = kept & (again["table/idle"] > 0)
    assert unused.any() and (again["table/idle"][unused] == saved["table/idle"][unused] + 1).all()
    assert (
        again["table/counts"].sum(axis=0)[3] - saved["table/counts"].sum(axis=0)[3]
        == (saved["table/idle"][taken & ~kept] >= 50).sum()
    )
