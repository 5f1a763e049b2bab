"""What becomes of variables and books when a ps loses its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import APPLIED, RECEIVED, ROLLED_BACK, VOID, is_balanced
from psruntime.core.accounting.saved_state import SUFFIX, SavedState
from psruntime.graph.buckets.bucket_store import ACCEPTED, ARRIVED, RESTORE_LEAP
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.bad_files import cut_in_half, make_folder
from tests.support.local_cluster import INCARNATION, LocalCluster, LocalControlPlane, Run, linear_model, train
from tests.support.selection import long_but

ADAM = linear_model(OPTIMIZERS["adam"])
SLICED = {"slice_bytes": 64}


def masters(run: Run) -> dict[str, Any]:
    with run.cluster.session(run.graph.graph) as session:
        values: dict[str, Any] = session.run({n: s.master.read_value() for n, s in run.graph.model.stores.items()})
        return values


def forget_the_last(folder: Path, step: int) -> None:
    """The checkpoint of this step is the newest again."""
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{step}"\n')


def rows_of(run: Run) -> dict[int, list[Any]]:
    """Ps -> the ledgers of its buckets."""
    ledgers = run.cluster.ledgers(run.graph.plan)
    assert all(is_balanced(row) for row in ledgers.values())
    on = {ps: [b.name for b in run.graph.plan.on(ps)] for ps in range(len(run.cluster.ps))}
    return {ps: [ledgers[name] for name in names] for ps, names in on.items()}


@pytest.mark.parametrize("mode", long_but(["sync"], ["async", "sync"]))
def test_a_rollback_moves_what_it_undoes(mode: str, tmp_path: Path) -> None:
    """Six updates, of which the checkpoint has three: the survivor moves three, the fresh ps has the saved books."""
    cluster = LocalCluster(2)
    settings = {"mode": mode, "save_steps": 3, "checkpoint_dir": str(tmp_path), **SLICED}
    train(cluster, ADAM, 6, **settings)
    forget_the_last(tmp_path, 3)
    cluster.forget(1)
    second = train(cluster, ADAM, 2, **settings)
    assert second.control_plane.prepared_at == [3]
    assert second.control_plane.steps_lost == 3
    rows = rows_of(second)
    for row in rows[0]:
        assert (row[RECEIVED], row[APPLIED], row[ROLLED_BACK]) == (8, 5, 3)
    for row in rows[1]:
        begun = mode == "sync"  # the round after the checkpoint's, whose contribution its books have
        assert (row[RECEIVED], row[VOID], row[APPLIED], row[ROLLED_BACK]) == (5 + begun, begun, 5, 0)


@pytest.mark.long
@pytest.mark.parametrize("mode", long_but(["sync"], ["async", "sync"]))
def test_a_ps_without_variables_takes_nothing_with_it(mode: str, tmp_path: Path) -> None:
    cluster = LocalCluster(2)
    settings = {"mode": mode, "save_steps": 3, "checkpoint_dir": str(tmp_path), "min_ps_bytes": 1 << 20}
    first = train(cluster, ADAM, 5, **settings)
    assert not first.graph.plan.on(1)
    live = masters(first)
    cluster.forget(1)
    cluster.fence({0: INCARNATION})
    second = train(cluster, ADAM, 0, **settings)
    assert [event["global_step"] for event in second.named("adopted")] == [5]
    assert second.control_plane.steps_lost == 0
    for name, value in masters(second).items():
        np.testing.assert_array_equal(value, live[name], err_msg=name)
    third = train(cluster, ADAM, 2, **settings)
    assert {tuple(row[[RECEIVED, APPLIED]]) for row in rows_of(third)[0]} == {(7, 7)}
    of_empty = cluster.states[1]
    of_empty.set_plan(third.graph.plan)
    assert (of_empty.read()[0].buckets, of_empty.accepted(), of_empty.unbalanced()) == (0, {}, [])


@pytest.mark.long
def test_partial_leaves_the_live_buckets_alone(tmp_path: Path) -> None:
    cluster = LocalCluster(2)
    settings = {"on_ps_loss": "partial", "save_steps": 3, "checkpoint_dir": str(tmp_path), **SLICED}
    first = train(cluster, ADAM, 6, **settings)
    live = masters(first)
    forget_the_last(tmp_path, 3)
    cluster.forget(1)
    second = train(cluster, ADAM, 0, **settings)
    (event,) = second.named("restored")
    assert (event["only_ps"], event["reason"], event["global_step"]) == ("1", "ps 1 lost its variables", 6)
    assert second.control_plane.steps_lost == 3
    after = masters(second)
    of_ps = {name: store.bucket.ps for name, store in second.graph.model.stores.items()}
    assert all(np.array_equal(after[n], live[n]) for n, ps in of_ps.items() if ps == 0)
    assert not any(np.array_equal(after[n], live[n]) for n, ps in of_ps.items() if ps == 1)
    rows = rows_of(second)
    assert {tuple(row[[RECEIVED, APPLIED, ROLLED_BACK]]) for row in rows[0]} == {(6, 6, 0)}
    assert {tuple(row[[RECEIVED, APPLIED, ROLLED_BACK]]) for row in rows[1]} == {(3, 3, 0)}
    cluster.fence({0: INCARNATION + 1})
    third = train(
        cluster,
        ADAM,
        2,
        make_control_plane=lambda view, steps: LocalControlPlane(view, steps, INCARNATION + 1),
        **settings,
    )
    assert third.named("adopted") and third.results[-1].global_step == 8
    assert all(result.dropped == 0 for result in third.results)


@pytest.mark.long
def test_partial_without_a_checkpoint_begins_the_lost_buckets_anew() -> None:
    cluster = LocalCluster(2)
    begun = masters(train(cluster, ADAM, 0, on_ps_loss="partial", **SLICED))
    first = train(cluster, ADAM, 4, on_ps_loss="partial", **SLICED)
    live = masters(first)
    cluster.forget(1)
    second = train(cluster, ADAM, 0, on_ps_loss="partial", **SLICED)
    assert second.named("initialised")[0]["only_ps"] == "1"
    after = masters(second)
    for name, store in second.graph.model.stores.items():
        np.testing.assert_array_equal(after[name], (begun if store.bucket.ps else live)[name], err_msg=name)


@pytest.mark.long
def test_all_ps_lost_and_the_books_come_back(tmp_path: Path) -> None:
    settings = {"checkpoint_dir": str(tmp_path), **SLICED}
    train(LocalCluster(2), ADAM, 4, **settings)
    cluster = LocalCluster(2)
    second = train(cluster, ADAM, 2, **settings)
    for rows in rows_of(second).values():
        assert {tuple(row[[RECEIVED, APPLIED, ROLLED_BACK]]) for row in rows} == {(6, 6, 0)}
    with cluster.session(second.graph.graph) as session:
        assert set(np.concatenate(session.run(list(second.graph.model.versions.values())))) == {6 + RESTORE_LEAP}


@pytest.mark.long
@pytest.mark.parametrize(("plan", "brought"), [("per-variable", {6}), ("packed", {2})])
def test_each_bucket_has_its_own_pushes_after_a_restore_on_more_ps(
    plan: str, brought: set[int], tmp_path: Path
) -> None:
    """A bucket that the checkpoint knows goes on, on whatever ps it is now; one that it does not know begins anew."""
    settings = {"checkpoint_dir": str(tmp_path), "slice_bytes": 64, "plan": plan}
    train(LocalCluster(1), ADAM, 4, **settings)
    cluster = LocalCluster(2)
    run = train(cluster, ADAM, 2, **settings)
    stores = run.graph.model.stores.values()
    assert {store.bucket.ps for store in stores} == {0, 1}
    with cluster.session(run.graph.graph) as session:
        ledgers, pushed = session.run([[s.ledger() for s in stores], [s.counts() for s in stores]])
    counts = [tuple(row[[RECEIVED, APPLIED]]) for row in ledgers]
    assert {received for received, _ in counts} == brought
    assert [tuple(of_workers[0, [ARRIVED, ACCEPTED]]) for of_workers in pushed] == counts


@pytest.mark.long
def test_each_bucket_has_the_pushes_of_the_ps_that_it_was_on(tmp_path: Path) -> None:
    settings = {"checkpoint_dir": str(tmp_path), "plan": "per-variable"}
    first = train(LocalCluster(2), ADAM, 4, **settings)
    books = tmp_path / f"model.ckpt-4{SUFFIX}"
    state = json.loads(books.read_text())
    state["counts"]["1"] = {"0": [3, 4]}  # of its buckets one refused a push
    books.write_text(json.dumps(state))
    cluster = LocalCluster(1)
    run = train(cluster, ADAM, 2, **settings)
    was_on = {name: store.bucket.ps for name, store in first.graph.model.stores.items()}
    assert {*was_on.values()} == {0, 1}
    with cluster.session(run.graph.graph) as session:
        for name, store in run.graph.model.stores.items():
            accepted, received = session.run(store.counts())[0, [ACCEPTED, ARRIVED]]
            assert (accepted, received) == ((6, 6), (5, 6))[was_on[name]]


def test_the_state_beside_a_checkpoint_tells_its_cut(tmp_path: Path) -> None:
    run = train(LocalCluster(2), ADAM, 4, checkpoint_dir=str(tmp_path), **SLICED)
    text = (tmp_path / f"model.ckpt-4{SUFFIX}").read_text()
    state = SavedState.of_text(text)
    assert (state.global_step, state.spread, json.loads(text)["spread"]) == (4, 0, 0)
    assert state.buckets.keys() == {*run.graph.model.stores, "global_step"}
    assert {books.ledger[APPLIED] for books in state.buckets.values()} == {4}
    assert state.counts == {0: {0: (4, 4)}, 1: {0: (4, 4)}}
    assert run.named("checkpoint")[-1]["spread"] == 0


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "state": (SUFFIX, cut_in_half), "data": (".data-00000-of-00002", cut_in_half), "index": (".index", Path.unlink),
    "state is a folder": (SUFFIX, make_folder), "data is a folder": (".data-00000-of-00002", make_folder),
    "index is a folder": (".index", make_folder),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_with_a_word(name: str, tmp_path: Path) -> None:
    """Those before it are whole; what was trained since is trained again, and the accounts know."""
    train(LocalCluster(2), ADAM, 4, save_steps=2, checkpoint_dir=str(tmp_path), **SLICED)
    ending, damage = DAMAGES[name]
    damage(tmp_path / f"model.ckpt-4{ending}")
    again = train(LocalCluster(2), ADAM, 3, save_steps=2, checkpoint_dir=str(tmp_path), **SLICED)
    told = [(Path(event["path"]).name, Path(event["instead"]).name) for event in again.named("checkpoint_damaged")]
    assert told == [("model.ckpt-4", "the same, once more"), ("model.ckpt-4", "model.ckpt-2")]
    (restored,) = again.named("restored")
    assert (restored["global_step"], restored["fresh_ps"], restored["reason"]) == (2, 2, "no ps holds anything")
    assert again.control_plane.steps_lost == 2
    assert all(is_balanced(row) for row in again.cluster.ledgers(again.graph.plan).values())
    other = {"checkpoint_dir": str(tmp_path / "other"), **SLICED}
    train(LocalCluster(2), ADAM, 2, **other)
    unbroken = train(LocalCluster(2), ADAM, 3, **other)
    newest, expected = (tf1.train.load_checkpoint(run.checkpoints.latest()) for run in (again, unbroken))
    for name in expected.get_variable_to_shape_map():
        np.testing.assert_array_equal(newest.get_tensor(name), expected.get_tensor(name), err_msg=name)


@pytest.mark.long
def test_a_folder_in_which_every_checkpoint_is_damaged_ends_the_job(tmp_path: Path) -> None:
    from psruntime.errors import CheckpointError

    train(LocalCluster(1), ADAM, 2, checkpoint_dir=str(tmp_path))
    for path in tmp_path.glob("*.data-*"):
        cut_in_half(path)
    with pytest.raises(CheckpointError, match=r"model\.ckpt-2 cannot be read: .*bring its files back"):
        train(LocalCluster(1), ADAM, 1, checkpoint_dir=str(tmp_path))
