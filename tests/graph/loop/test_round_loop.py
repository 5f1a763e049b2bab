"""Rounds of a worker whose session or view is lost: every batch is contributed once, whatever was interrupted."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import APPLIED, NOT_FINITE, PENDING, is_balanced
from psruntime.core.rounds.round_messages import Action, ActionKind, Applied, Broken, Complete, Starved
from psruntime.errors import JobFailedError
from psruntime.graph.base.graphs import ancestors
from psruntime.graph.loop.round_runs import RoundRuns
from psruntime.model import Context, Model
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.graph.step.test_clipping import clipping
from tests.support.embedding_model import embedding_model
from tests.support.local_cluster import INCARNATION, LocalCluster, Run, linear_model, train
from tests.support.round_control_plane import RoundControlPlane, lose_session, plain_batches, write_books
from tests.support.selection import long_but

MODEL = linear_model(OPTIMIZERS["momentum"])
TABLES = embedding_model(OPTIMIZERS["adagrad"], 0.05)
APART = clipping(MODEL, clip_norm=1e9)  # which clips nothing, but a round is closed by itself
ROUNDS = 5


def sync(cluster: LocalCluster, folder: Any, model: Model = MODEL, steps: int = ROUNDS, **more: Any) -> Run:
    more = {"make_control_plane": RoundControlPlane, **more}
    return train(cluster, model, steps, mode="sync", checkpoint_dir=str(folder), **more)


@cache
def plain(batches: tuple[int, ...]) -> dict[str, Any]:
    return plain_batches(MODEL, [[n] for n in batches])


def check(run: Run, batches: list[int]) -> None:
    """The variables are those of plain TensorFlow on these batches, so is the record, and the ledgers balance."""
    control_plane = run.control_plane
    assert isinstance(control_plane, RoundControlPlane)
    assert control_plane.recorded == batches
    reader = tf1.train.load_checkpoint(run.checkpoints.latest())
    assert reader.get_tensor("global_step") == len(batches)
    for name, value in plain(tuple(batches)).items():
        np.testing.assert_allclose(reader.get_tensor(name), value, rtol=1e-5, atol=1e-6, err_msg=name)
    for ledger in run.cluster.ledgers(run.graph.plan).values():
        assert is_balanced(ledger)


LOSSES = [
    (MODEL, "compute", "partly"), (MODEL, "closing", "partly"), (APART, "close", "partly"),
    (MODEL, "compute", "before"), (MODEL, "compute", "after"), (MODEL, "closing", "after"),
    (APART, "close", "before"), (APART, "close", "after"), (APART, "compute", "after"),
]  # fmt: skip
LATER = [pytest.param(*loss, marks=pytest.mark.long) for loss in LOSSES]
IDS = [f"{'apart' if model is APART else 'on the way'}-{stage}-{how}" for model, stage, how in LOSSES]


@pytest.mark.long
@pytest.mark.parametrize(("model", "stage", "how"), [*LOSSES[:1], *LATER[1:3]], ids=IDS[:3])
def test_a_lost_session_neither_loses_nor_doubles_a_batch(
    model: Model, stage: str, how: str, cluster: LocalCluster, tmp_path: Any, monkeypatch: Any
) -> None:
    lost = lose_session(monkeypatch, stage, how, occasion=3)
    run = sync(cluster, tmp_path, model)
    assert lost and len(run.named("session")) == 2
    check(run, [0, 1, 2, 3, 4])
    assert isinstance(run.control_plane, RoundControlPlane)
    attempts = [pushed.attempt for pushed in run.control_plane.contributed]
    assert attempts == ([1, 2, 3, 4, 5] if stage == "close" else [1, 2, 4, 5, 6]), "none is pushed to twice"
    for ledger in cluster.ledgers(run.graph.plan).values():
        assert ledger[APPLIED] == ROUNDS
        assert ledger[PENDING] == 0


@pytest.mark.parametrize(("model", "stage", "how"), [*LOSSES[:1], *LATER[1:]], ids=IDS)
def test_a_lost_view_neither_loses_nor_doubles_a_batch(
    model: Model, stage: str, how: str, cluster: LocalCluster, tmp_path: Any, monkeypatch: Any
) -> None:
    control_planes: list[RoundControlPlane] = []

    def make_control_plane(*args: Any) -> RoundControlPlane:
        control_planes.append(RoundControlPlane(*args))
        return control_planes[0]

    lost = lose_session(monkeypatch, stage, how, occasion=3, also=lambda: control_planes[0].change_view())
    run = sync(cluster, tmp_path, model, make_control_plane=make_control_plane)
    assert lost and [event["view"] for event in run.named("session")] == [1, 2]
    if stage != "compute" and how == "partly":  # what one ps applied and the other did not cannot be adopted
        assert run.named("restored") and run.control_plane.prepared_at == [0, 0]
        first = 1 if stage == "closing" else 2  # that of the last round which was contributed whole
        check(run, [*range(first, first + ROUNDS)])
    else:
        assert run.named("adopted")
        check(run, [0, 1, 2, 3, 4])


def test_the_same_batch_is_pushed_again_when_an_attempt_became_void(cluster: LocalCluster, tmp_path: Any) -> None:
    def lose_another(control_plane: RoundControlPlane, action: Action) -> None:
        if action.kind is ActionKind.PUSH and action.attempt == 2:
            control_plane.rounds._members[5] = 1  # somebody who is gone when this worker has pushed
        elif action.kind is ActionKind.WAIT:
            control_plane.rounds.lose(5)

    class Changing(RoundControlPlane):
        def next_action(self, assignment: Any, done: Any, starved: Starved | None = None) -> Action | None:
            action = super().next_action(assignment, done, starved)
            return (
                super().next_action(assignment, None, starved) if action and action.kind is ActionKind.WAIT else action
            )

    run = sync(cluster, tmp_path, make_control_plane=partial(Changing, on_action=lose_another))
    assert isinstance(run.control_plane, RoundControlPlane)
    said = [(c.round, c.attempt, c.batch) for c in run.control_plane.contributed]
    assert said == [(1, 1, 0), (2, 2, 1), (2, 3, 1), (3, 4, 2), (4, 5, 3), (5, 6, 4)]
    assert len(run.results) == ROUNDS, "it was not computed again"
    check(run, [0, 1, 2, 3, 4])


@pytest.mark.long
def test_a_batch_that_turned_out_to_come_too_early_waits_and_is_trained_once(
    cluster: LocalCluster, tmp_path: Any
) -> None:
    """A worker that was admitted anew repeats its batch, in a step that finds the round before torn."""

    def admit_anew_and_tear(control_plane: RoundControlPlane, action: Action) -> None:
        if action.kind is ActionKind.PUSH and action.attempt == 3 and not torn:
            torn.append(action)
            control_plane.incarnation += 1
            cluster.fence({0: control_plane.incarnation})
            control_plane.rounds.lose(INCARNATION)
            write_books(cluster, plan, 1, cut_off)

    torn: list[Action] = []
    plan = sync(cluster, tmp_path, steps=0).graph.plan
    run = sync(cluster, tmp_path, make_control_plane=partial(RoundControlPlane, on_action=admit_anew_and_tear))
    assert isinstance(run.control_plane, RoundControlPlane)
    assert torn and run.control_plane.torn
    assert len(set(run.control_plane.recorded)) == ROUNDS == len(run.control_plane.recorded), "each batch once"


@pytest.mark.parametrize("model", long_but([MODEL], [MODEL, TABLES]), ids=["dense", "tables"])
def test_nothing_is_computed_of_a_batch_before_every_bucket_is_closed(
    model: Model, cluster: LocalCluster, tmp_path: Any
) -> None:
    """A model that fails in the middle of a close would leave it torn."""
    graph = sync(cluster, tmp_path, model, steps=1).graph
    assert graph.rounds
    closes = set(graph.rounds.after_close.values())
    assert len(closes) == len(graph.rounds.sections)
    begun = [op for fed in graph.model.batch for op in fed.consumers() if op.type == "Identity"]
    assert len(begun) >= len(graph.model.batch)
    assert all(closes <= ancestors([op]) for op in begun)


@pytest.mark.long
def test_a_round_that_was_pulled_too_early_is_given_up(cluster: LocalCluster, tmp_path: Any, monkeypatch: Any) -> None:
    """Another run was in the update of a bucket while it was pulled, and is done when this worker looks again."""

    def in_an_update(control_plane: RoundControlPlane, action: Action) -> None:
        if action.closes and action.closes.attempt == 4 and not control_plane.torn:
            write_books(cluster, plan, 1, cut_off)

    def done_by_now(self: RoundRuns, session: Any, assignment: Any, closes: Complete) -> Any:
        found = close(self, session, assignment, closes)
        return Applied(closes.round, closes.attempt, closes.round) if isinstance(found, Broken) else found

    plan = sync(cluster, tmp_path, steps=0).graph.plan
    close = RoundRuns.close
    monkeypatch.setattr(RoundRuns, "close", done_by_now)
    run = sync(cluster, tmp_path, make_control_plane=partial(RoundControlPlane, on_action=in_an_update))
    assert isinstance(run.control_plane, RoundControlPlane)
    assert [(t.round, t.attempt) for t in run.control_plane.torn] == [(5, 5)], "what may have that gradient in its sums"
    assert run.named("restored") and run.control_plane.prepared_at[-1] == 0


def sealed(books: Any) -> Any:
    return books * np.array([1, 0, 1, 1])


def cut_off(books: Any) -> Any:
    return books + np.array([0, 0, 1, 0])


@pytest.mark.parametrize("model", long_but([MODEL], [MODEL, APART]), ids=["on the way", "apart"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [pytest.param(sealed, "sections lack contributions", marks=pytest.mark.long), (cut_off, "sections were cut off")],
)
def test_a_torn_round_goes_back_to_the_checkpoint(
    change: Any, reason: str, model: Model, cluster: LocalCluster, tmp_path: Any
) -> None:
    def tear(control_plane: RoundControlPlane, action: Action) -> None:
        if action.closes and action.closes.attempt == 4:
            write_books(cluster, plan, 1, change)

    first = sync(cluster, tmp_path, model, steps=2)
    plan = first.graph.plan
    run = sync(cluster, tmp_path, model, make_control_plane=partial(RoundControlPlane, on_action=tear, recorded=[0, 1]))
    control_plane = run.control_plane
    assert isinstance(control_plane, RoundControlPlane)
    assert [(t.round, t.attempt, reason in t.reason) for t in control_plane.torn] == [(4, 4, True)]
    assert run.named("adopted") and run.named("restored") and control_plane.prepared_at == [2, 2]
    seen = 4 if model is APART else 5  # by the ps: attempt 5 found the one before torn
    assert control_plane.contributed[-1].attempt == seen + 3, "attempts go on above"
    check(run, [0, 1, 1, 2, 3])  # the second process began its input anew


def with_bad_batch(bad: int) -> Model:
    """MODEL, in whose input this batch has labels that are not numbers."""

    def input_fn(context: Context) -> Any:
        def spoil(i: Any, batch: Any) -> Any:
            features, labels = batch
            return features, tf1.where(tf1.equal(i, bad), labels * np.nan, labels)

        return MODEL.input_fn(context).enumerate().map(spoil)

    return Model("tests.spoilt", input_fn, MODEL.model_fn)


@pytest.mark.long
def test_a_loss_that_is_not_finite_stops_the_job(cluster: LocalCluster, tmp_path: Any) -> None:
    control_planes: list[RoundControlPlane] = []

    def make_control_plane(*args: Any) -> RoundControlPlane:
        control_planes.append(RoundControlPlane(*args))
        return control_planes[0]

    with pytest.raises(JobFailedError, match="the loss is nan at global step 2"):
        sync(cluster, tmp_path, with_bad_batch(2), make_control_plane=make_control_plane)
    assert control_planes[0].recorded == [0, 1]
    assert len(control_planes[0].contributed) == 2


@pytest.mark.long
def test_a_loss_that_is_not_finite_is_passed_over(cluster: LocalCluster, tmp_path: Any) -> None:
    run = sync(cluster, tmp_path, with_bad_batch(2), on_nan="continue")
    assert isinstance(run.control_plane, RoundControlPlane)
    assert [(c.round, c.examples) for c in run.control_plane.contributed][1:5] == [
        (2, 8.0),
        (3, 0.0),
        (3, 8.0),
        (4, 8.0),
    ]
    check(run, [0, 1, 3, 4, 5])
    for ledger in cluster.ledgers(run.graph.plan).values():
        assert (ledger[APPLIED], ledger[NOT_FINITE]) == (ROUNDS, 1)


@pytest.mark.long
def test_live_variables_are_adopted_and_attempts_go_on(cluster: LocalCluster, tmp_path: Any) -> None:
    sync(cluster, tmp_path, steps=3)
    run = sync(cluster, tmp_path, make_control_plane=partial(RoundControlPlane, recorded=[0, 1, 2]))
    assert run.named("adopted") and run.control_plane.prepared_at == [3]
    assert isinstance(run.control_plane, RoundControlPlane)
    assert [c.attempt for c in run.control_plane.contributed] == [4, 5]
    check(run, [0, 1, 2, 0, 1])


@pytest.mark.long
@pytest.mark.parametrize("why", ["other rounds", "torn", "told to", "fresh ps"])
def test_what_cannot_be_adopted_is_restored_and_attempts_go_on(why: str, cluster: LocalCluster, tmp_path: Any) -> None:
    plan = sync(cluster, tmp_path, steps=3).graph.plan
    one_more, begun = np.array([1, 0, 1, 1]), np.array([1, 0, 1, 0])
    if why == "other rounds":  # one bucket has applied a round that the others have not
        write_books(cluster, plan, 1, lambda books: books + one_more)
    elif why == "torn":
        write_books(cluster, plan, 1, lambda books: books + begun)
    elif why == "fresh ps":
        cluster.forget(1)
    run = sync(
        cluster, tmp_path, make_control_plane=partial(RoundControlPlane, restore=why == "told to", recorded=[0, 1, 2])
    )
    assert run.named("restored")[0]["fresh_ps"] == (why == "fresh ps")
    assert run.control_plane.prepared_at == [3]
    assert isinstance(run.control_plane, RoundControlPlane)
    first = 5 if why in ("other rounds", "torn") else 4
    assert [c.attempt for c in run.control_plane.contributed] == [first, first + 1]
    check(run, [0, 1, 2, 0, 1])
