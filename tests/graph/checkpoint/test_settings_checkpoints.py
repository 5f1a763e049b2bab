"""Plans, wires, pipelines, local steps and slices together: a checkpoint that is made while steps are under way has
values that fit its books, and brings both back: to a ps that lost its own, and to a job of other settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psruntime.core.accounting.accounts import APPLIED, EMPTY, PENDING, RECEIVED, ROLLED_BACK, brought_back, is_balanced
from psruntime.core.accounting.saved_state import SUFFIX, SavedState
from psruntime.graph.buckets.bucket_store import GLOBAL_STEP, RESTORE_LEAP
from tests.graph.loop.test_training_loop import Overlapping
from tests.graph.recovery.test_recovery import forget_the_last
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.by_hand import ByHand, of_variables
from tests.support.local_cluster import Run, train
from tests.support.settings import SETTINGS, adding_model, batches, cluster_of
from tests.support.stock import contents

STEPS, SAVE_STEPS = 12, 4
ADAM = adding_model(OPTIMIZERS["adam"], 0.1)
NAMES = list(SETTINGS)
NEXT = dict(zip(NAMES, [*NAMES[1:], NAMES[0]], strict=True))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_brings_back_values_and_books(name: str, tmp_path: Path) -> None:
    settings, others = SETTINGS[name], SETTINGS[NEXT[name]]
    cluster, folder = cluster_of(settings), {"checkpoint_dir": str(tmp_path), "save_steps": SAVE_STEPS}
    run = train(cluster, ADAM, STEPS, make_control_plane=Overlapping, **folder, **settings)
    assert_written_as_copied(run)
    path = run.named("checkpoint")[0]["path"]
    state, saved = state_of(path), contents(path)
    assert SAVE_STEPS <= state.global_step < STEPS
    open_rounds = {books.ledger[PENDING] for books in state.buckets.values()}
    assert open_rounds == {int(settings["mode"] == "sync")}
    assert_fit(run, state, saved)

    before = ByHand(run, []).look()
    forget_the_last(tmp_path, state.global_step)
    lost = settings["ps"] - 1
    cluster.forget(lost)
    again = train(cluster, ADAM, 0, **folder, **settings)
    assert [event["fresh_ps"] for event in again.named("restored")] == [1]
    assert again.control_plane.prepared_at == [state.global_step]
    after = ByHand(again, []).look()
    assert_values(again, after, saved)
    for bucket, row in cluster.ledgers(again.graph.plan).items():
        assert row[PENDING] == 0, "a round that was open is void"
        books, version = state.buckets[bucket], after[bucket]["version"]
        if ps_of(again, bucket) == lost:
            assert (row.tolist(), version) == (brought_back(books.ledger), books.version + RESTORE_LEAP)
        else:
            kept = books.ledger[APPLIED]
            assert row[[RECEIVED, APPLIED, ROLLED_BACK]].tolist() == [STEPS + 1, kept, STEPS + 1 - kept]
            assert version == before[bucket]["version"] + RESTORE_LEAP

    rolled_back = state_of(again.checkpoints.latest())
    elsewhere = cluster_of(others)
    other = train(elsewhere, ADAM, 0, **folder, **others)
    assert other.named("restored")
    assert other.control_plane.prepared_at == [state.global_step]
    assert_values(other, ByHand(other, []).look(), saved)
    for bucket, row in elsewhere.ledgers(other.graph.plan).items():
        known = rolled_back.buckets.get(bucket)  # by name; one of the other plan has none
        assert row.tolist() == (brought_back(known.ledger) if known else list(EMPTY))
    assert_goes_on(other)


def state_of(path: Any) -> SavedState:
    return SavedState.of_text(Path(f"{path}{SUFFIX}").read_text())


def assert_fit(run: Run, state: SavedState, saved: dict[str, Any]) -> None:
    """The saved values are those after as many updates as the saved books say, bucket by bucket."""
    assert state.buckets[GLOBAL_STEP.name].ledger[APPLIED] == saved["global_step"] == state.global_step
    for spec in run.graph.plan.trained:
        first, _ = run.graph.plan.pieces_of(spec.name)[0]
        applied = state.buckets[first.name].ledger[APPLIED]
        np.testing.assert_allclose(saved[f"{spec.name}/beta1_power"], 0.9 ** (applied + 1), rtol=1e-5)


def assert_written_as_copied(run: Run) -> None:
    """Whatever is applied while it is written."""
    by_hand = ByHand(run, batches(ADAM, run.job.local_steps, 1))
    held = by_hand.look()
    state = run.checkpoints.copy(by_hand.session)
    assert state
    by_hand.update(STEPS + 1)
    assert_values(run, held, contents(run.checkpoints.write(by_hand.session, state).path))


def assert_values(run: Run, held: dict[str, dict[str, Any]], saved: dict[str, Any]) -> None:
    """What the ps hold is, to the bit, what was saved: variables, slots, and what the optimizer keeps once a bucket."""
    buckets = run.graph.plan.buckets
    assert held[GLOBAL_STEP.name]["master"] == saved["global_step"]
    for suffix, kind in [("", "master"), ("/Adam", "Adam"), ("/Adam_1", "Adam_1")]:
        for name, entries in of_variables([(bucket, held[bucket.name][kind]) for bucket in buckets]).items():
            assert np.any(entries), "it was trained"
            np.testing.assert_array_equal(entries, np.reshape(saved[name + suffix], -1), err_msg=name + suffix)
    for bucket in buckets:
        for power in ("beta1_power", "beta2_power"):
            assert held[bucket.name][power] == saved[f"{bucket.variable}/{power}"], bucket


def assert_goes_on(run: Run) -> None:
    """Every bucket takes the next update, and its ledger balances."""
    ByHand(run, batches(ADAM, run.job.local_steps, 1)).update(STEPS + 1)
    assert all(is_balanced(row) for row in run.cluster.ledgers(run.graph.plan).values())


def ps_of(run: Run, bucket: str) -> int:
    return GLOBAL_STEP.ps if bucket == GLOBAL_STEP.name else run.graph.model.stores[bucket].bucket.ps
