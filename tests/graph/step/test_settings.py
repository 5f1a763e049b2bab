"""Plans, wires, pipelines, local steps and slices together: what is pushed is applied once, to the bit, and accounted
for; what is refused changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import (
    APPLIED,
    CAUSES,
    FENCED,
    NOT_FINITE,
    PENDING,
    RECEIVED,
    REPEATED,
    STALE,
    VOID,
    is_balanced,
)
from tests.graph.loop.test_training_loop import Overlapping, lose_the_answer_of
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.by_hand import ORIGIN, ByHand, of_variables
from tests.support.local_cluster import INCARNATION, Run, train
from tests.support.selection import long_but
from tests.support.settings import (
    BATCH,
    QUICK,
    SETTINGS,
    VALUES,
    adding_model,
    batches,
    cluster_of,
    every_job,
    gradients,
)

STEPS, TRAINED = 40, 2
SGD, ADAM = adding_model(OPTIMIZERS["sgd"]), adding_model(OPTIMIZERS["adam"])


def each_setting(*modes: str) -> Any:
    chosen = {name: settings for name, settings in SETTINGS.items() if settings["mode"] in modes}
    quick = [settings for name, settings in chosen.items() if name in QUICK]
    return pytest.mark.parametrize("settings", long_but(quick, chosen.values()), ids=chosen)


def pairs(settings: dict[str, Any]) -> set[Any]:
    return set(combinations([(name, settings[name]) for name in VALUES], 2))


def test_every_two_values_that_a_job_may_have_meet_in_one() -> None:
    assert set().union(*map(pairs, SETTINGS.values())) == set().union(*map(pairs, every_job()))


@each_setting("async", "bounded", "sync")
def test_what_is_pushed_is_applied_once_and_what_rounding_leaves_is_kept(
    settings: dict[str, Any], monkeypatch: Any
) -> None:
    """Under error feedback what was applied and what is left over make the gradients.  Else what was applied is the
    gradients, each rounded once, although the answer to a push is lost on the way (which would lose what is left)."""
    with_feedback = settings["wire_error_feedback"] == "on"
    lost = [] if with_feedback else lose_the_answer_of(5, tf1.errors.AbortedError, monkeypatch)
    run = train(cluster_of(settings), SGD, STEPS, make_control_plane=Overlapping, **settings)
    assert bool(lost) != with_feedback
    assert isinstance(run.control_plane, Overlapping)
    assert run.control_plane.most == settings["pipeline"] - 1, "as many steps were under way as may be"

    by_hand, buckets = ByHand(run, []), run.graph.plan.buckets
    held, left = by_hand.look(), by_hand.residues()
    applied = of_variables([(bucket, -held[bucket.name]["master"]) for bucket in buckets])
    kept = of_variables([(bucket, left[bucket.name]) for bucket in buckets if bucket.name in left])
    assert kept.keys() == ({"dense", "scalar"} if with_feedback else set())
    for name, every_gradient in gradients(SGD, settings["local_steps"], STEPS).items():
        true, rounded = np.ravel(sum(every_gradient)), np.ravel(sum(map(rounding(settings), every_gradient)))
        expected = true - kept[name] if name in kept else rounded
        np.testing.assert_array_equal(applied[name], expected, err_msg=name)
        if name != "scalar":  # whose gradients are 1
            assert np.array_equal(true, rounded) == (settings["wire"] == "float32"), "the wire made no difference"
            assert np.any(kept.get(name, 1)), "nothing was left over"
    for name, value in by_hand.pulled().items():
        np.testing.assert_array_equal(np.ravel(value), rounding(settings)(-applied[name]), err_msg=name)
    assert_accounted(run, pushed=STEPS + len(lost), applied=STEPS)


def rounding(settings: dict[str, Any]) -> Callable[[Any], Any]:
    """What the wire makes of float32."""
    wire = tf1.as_dtype(settings["wire"]).as_numpy_dtype
    return lambda values: values.astype(wire).astype(np.float32)


def assert_accounted(run: Run, pushed: int, applied: int) -> None:
    """Every bucket has received every push, and applied so many; the others it knows, or their attempt is void."""
    assert run.control_plane.pushed == pushed
    other = VOID if run.job.mode == "sync" else REPEATED
    for name, row in run.cluster.ledgers(run.graph.plan).items():
        assert (row[RECEIVED], row[APPLIED], row[other]) == (pushed, applied, pushed - applied), name
    for state in run.cluster.states:
        state.set_plan(run.graph.plan)
        assert state.read()[0].received_of == {0: pushed}
        assert state.unbalanced() == []


@pytest.mark.long
@each_setting("async", "bounded")
def test_a_refused_push_changes_nothing(settings: dict[str, Any]) -> None:
    """Master, slots and version stay to the bit, whatever the cause; then one at the limit is applied."""
    cluster = cluster_of(settings)
    run = train(cluster, ADAM, TRAINED, **settings)
    limit = cluster.max_staleness = 1 if cluster.max_staleness is None else cluster.max_staleness
    cluster.fence({0: INCARNATION})
    by_hand = ByHand(run, batches(ADAM, settings["local_steps"], 3))
    told = [by_hand.push(number) for number in (1, 3, 2)]  # not in their order, as from lanes
    before, residues = by_hand.look(), by_hand.residues()
    for cause, how in [
        (NOT_FINITE, {"sequence": 4, "poison": True}),
        (REPEATED, {"sequence": 2}),
        (FENCED, {"sequence": 5, "incarnation": INCARNATION + 1}),
    ]:
        told.append(by_hand.push(**how))
        assert set(told[-1].values()) == {cause}
        assert_same(before, by_hand.look())
        if cause == NOT_FINITE:  # what is left of one that is refused for another cause is that of what was sent
            assert_same({"of worker": residues}, {"of worker": by_hand.residues()})
    for sequence, behind in [(6, limit + 1), (7, -1)]:  # -1: pulled before the bucket was made anew
        told.append(by_hand.push(sequence, behind=behind))
        assert set(told[-1].values()) == {STALE}
        assert_same(before, by_hand.look())
    told.append(by_hand.push(8, behind=limit))
    assert_all_changed(before, by_hand.look())
    assert_told(run, told, {})


@pytest.mark.long
@each_setting("sync")
def test_a_refused_contribution_or_close_changes_nothing(settings: dict[str, Any]) -> None:
    """Nor does a round whose only gradient is not finite change a variable."""
    run = train(cluster_of(settings), ADAM, TRAINED, **settings)
    by_hand = ByHand(run, batches(ADAM, settings["local_steps"], 3))
    told = [by_hand.push(3)]
    before = by_hand.look()
    for cause, how in [
        (REPEATED, {"sequence": 3}),
        (FENCED, {"sequence": 4, "incarnation": INCARNATION + 1}),
        (VOID, {"sequence": 2, "origin": ORIGIN + 1}),
    ]:
        told.append(by_hand.push(**how))
        assert set(told[-1].values()) == {cause}
        assert_same(before, by_hand.look())
    factor = 1 / (BATCH * settings["local_steps"])
    by_hand.close(3, factor, incarnation=INCARNATION + 1)
    by_hand.close(3, factor, members=2)
    by_hand.close(4, factor)
    assert_same(before, by_hand.look())
    by_hand.close(3, factor)
    closed, residues = by_hand.look(), by_hand.residues()
    assert_all_changed(before, closed)
    by_hand.close(3, factor)
    assert_same(closed, by_hand.look())
    told.append(by_hand.push(4, poison=True))
    assert set(told[-1].values()) == {NOT_FINITE}
    summed = by_hand.look()
    assert {held["unit"] for held in summed.values()} == {0.0}, "nothing is in the sum"
    by_hand.close(4, factor=0.0)
    assert_same(closed, by_hand.look(), "sum", "rows", "unit", "books")
    assert_same({"of worker": residues}, {"of worker": by_hand.residues()})
    assert_told(run, told, {PENDING: APPLIED})


def assert_same(one: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]], *but: str) -> None:
    """To the bit."""
    assert one.keys() == other.keys()
    for bucket in one.keys() - {*but}:
        assert one[bucket].keys() == other[bucket].keys()
        for name in one[bucket].keys() - {*but}:
            np.testing.assert_array_equal(other[bucket][name], one[bucket][name], err_msg=f"{name} of {bucket}")


def assert_all_changed(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> None:
    """Each bucket's master, version and optimizer's variables are not what they were."""
    for bucket, held in before.items():
        unchanged = [name for name, value in held.items() if np.array_equal(value, after[bucket][name])]
        assert not {*unchanged} - {"sum", "rows", "unit", "books"}, bucket


def assert_told(run: Run, told: list[dict[str, int]], later: dict[int, int]) -> None:
    """Each bucket's ledger is what it told of TRAINED pushes and of these; later: what became of some."""
    for name, row in run.cluster.ledgers(run.graph.plan).items():
        columns = Counter([APPLIED] * TRAINED + [later.get(outcomes[name], outcomes[name]) for outcomes in told])
        assert row[RECEIVED] == TRAINED + len(told)
        assert {c: row[c] for c in (APPLIED, PENDING, *CAUSES.values()) if row[c]} == columns, name
        assert is_balanced(row)
