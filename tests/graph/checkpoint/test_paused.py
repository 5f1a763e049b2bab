"""While nobody trains large tables are saved where they are, without a copy beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.errors import CheckpointError
from psruntime.graph.base.graphs import ancestors
from tests.graph.checkpoint.test_deltas import tables_model
from tests.graph.checkpoint.test_sharded_checkpoints import BLIND, same, steer
from tests.support.local_cluster import LocalCluster, Run, train


def trained(folder: Path, steps: int = 3, **settings: Any) -> Run:
    return train(LocalCluster(2), tables_model(), steps, checkpoint_dir=str(folder), **settings)


@pytest.mark.long
@pytest.mark.parametrize("how", ["each ps writes", "the chief writes"])
def test_what_is_saved_is_what_a_copy_has(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = trained(tmp_path / "copied")
    monkeypatch.setattr("psruntime.graph.checkpoint.checkpoints.ROOM_BYTES", 0)
    monkeypatch.setattr("psruntime.graph.base.variable_values.CHUNK_BYTES", 480)
    if how == "the chief writes":
        steer(monkeypatch, *BLIND["sees another file"][:2])
    in_place = trained(tmp_path / "in_place")
    same(copied.saved(), in_place.saved())


@pytest.mark.long
def test_no_table_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psruntime.graph.checkpoint.checkpoints.ROOM_BYTES", 0)
    run = trained(tmp_path, steps=0)
    form = run.checkpoints._when_paused
    assert form is not run.checkpoints._whole
    ran = tf1.nest.flatten([form.snapshot._take, [saving.last for saving in form._writer._sharded]])
    read = {op.inputs[0].op.name for op in ancestors(ran) if op.type == "ReadVariableOp"}
    tables = {store.master.handle.op.name for store in run.graph.model.stores.values() if store.bucket.is_table}
    assert tables and not tables & read


@pytest.mark.long
def test_if_somebody_trains_meanwhile_it_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psruntime.graph.checkpoint.checkpoints.ROOM_BYTES", 0)
    run = trained(tmp_path)
    checkpoints, before = run.checkpoints, run.checkpoints.latest()
    store = next(store for store in run.graph.model.stores.values() if store.bucket.is_table)
    graph = run.graph.graph
    graph._unsafe_unfinalize()
    with graph.as_default():
        updated = store.section.version.assign_add([1] * len(store.section.stores), read_value=False)
    with run.cluster.session(graph) as session:
        copied = checkpoints.copy(session, is_paused=True)
        session.run(updated)
        with pytest.raises(CheckpointError, match="variables were updated meanwhile"):
            checkpoints.write(session, copied)
    assert checkpoints.latest() == before
