"""The updates whose learning rate was lowered, in a recovery: saved, brought back, and undone with the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import APPLIED, DOWN_WEIGHTED, RECEIVED, ROLLED_BACK, is_balanced
from psruntime.core.accounting.saved_state import SUFFIX
from tests.support.by_hand import ByHand
from tests.support.local_cluster import LocalCluster, Run, linear_model, train

LATE = 3  # versions
SETTINGS = {"slice_bytes": 64, "staleness_lr": "inverse"}


def push_late(run: Run, *sequences: int) -> None:
    batch = [tensor.shape.as_list() for tensor in run.graph.model.batch]
    drawn = [[[[1.0] * shape[-1]] * 8 if len(shape) > 1 else [1.0] * 8 for shape in batch]]
    by_hand = ByHand(run, drawn)
    for sequence in sequences:
        assert set(by_hand.push(sequence, behind=LATE).values()) == {APPLIED}


def counted(run: Run) -> dict[str, Any]:
    """Of each bucket but the global step's, which is not lowered: received, applied, down-weighted, rolled back."""
    rows = run.cluster.ledgers(run.graph.plan)
    assert all(is_balanced(row) for row in rows.values())
    assert rows.pop("global_step")[DOWN_WEIGHTED] == 0
    return {name: tuple(map(int, row[[RECEIVED, APPLIED, DOWN_WEIGHTED, ROLLED_BACK]])) for name, row in rows.items()}


@pytest.mark.long
def test_a_rollback_undoes_what_was_lowered_since_the_checkpoint(tmp_path: Path) -> None:
    """Two steps, one late push; a step and its checkpoint; two late pushes; then a ps is lost."""
    cluster, model = LocalCluster(2), linear_model(tf1.train.AdamOptimizer)
    settings = {**SETTINGS, "checkpoint_dir": str(tmp_path)}
    push_late(train(cluster, model, 2, **settings), 101)
    run = train(cluster, model, 1, **settings)
    push_late(run, 102, 103)
    assert set(counted(run).values()) == {(6, 6, 3, 0)}
    cluster.forget(1)
    last = train(cluster, model, 2, **settings)
    of_ps = {store.bucket.name: store.bucket.ps for store in last.graph.model.stores.values()}
    survivors = {(8, 6, 1, 2)}  # what was undone is rolled back, and is no longer among the lowered
    fresh = {(6, 6, 1, 0)}  # the books of the checkpoint, and two steps
    found = counted(last)
    assert {found[name] for name, ps in of_ps.items() if ps == 0} == survivors
    assert {found[name] for name, ps in of_ps.items() if ps == 1} == fresh


@pytest.mark.long
def test_a_checkpoint_from_before_there_was_the_column_restores(tmp_path: Path) -> None:
    model, settings = linear_model(tf1.train.AdamOptimizer), {**SETTINGS, "checkpoint_dir": str(tmp_path)}
    train(LocalCluster(1), model, 3, **settings)
    (state,) = tmp_path.glob(f"*-3{SUFFIX}")
    data = json.loads(state.read_text())
    for bucket in data["buckets"].values():
        assert bucket["ledger"].pop() == 0
        assert len(bucket["ledger"]) == DOWN_WEIGHTED
    state.write_text(json.dumps(data))
    again = train(LocalCluster(1), model, 2, **settings)
    assert again.control_plane.prepared_at == [3]
    assert set(counted(again).values()) == {(5, 5, 0, 0)}
