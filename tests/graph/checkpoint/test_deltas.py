"""Deltas: checkpoints that hold of tables only the rows that were touched since the last whole one."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

import psruntime
from psruntime.core.accounting.saved_state import ROWS_SUFFIX, RowChanges
from psruntime.graph.checkpoint.folder import CheckpointFolder
from psruntime.graph.checkpoint.listing import newest_step, step_of
from psruntime.model import Context, Model, ModelSpec
from psruntime.optimizers import LazyAdam, RowwiseAdagrad
from tests.graph.checkpoint.test_sharded_checkpoints import BLIND, same, steer
from tests.support.local_cluster import LocalCluster, Run, train
from tests.support.stock import contents

ROWS, OTHER_ROWS, TOUCHED = 150, 60, 30
EVERY = {"delta_every": 2, "save_steps": 100}


ADAGRAD = partial(tf1.train.AdagradOptimizer, initial_accumulator_value=0.3)


def tables_model(optimizer: Any = ADAGRAD) -> Model:
    """Two tables of a group, one of another width, a dynamic one, and dense variables; few rows of each are touched."""

    def input_fn(context: Context) -> Any:
        def example(i: Any) -> tuple[Any, Any]:
            draw = tf1.random.stateless_uniform([3], seed=[tf1.cast(i, tf1.int32), 1])
            ids = 5 + tf1.cast(draw * draw * TOUCHED, tf1.int64)
            return ids, tf1.reduce_sum(tf1.sin(tf1.cast(ids, tf1.float32)))

        return tf1.data.Dataset.range(1000).map(example).batch(context.batch_size)

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        normal = tf1.truncated_normal_initializer(stddev=0.5, seed=7)
        large = tf1.get_variable("large", [ROWS, 4], initializer=normal)
        small = tf1.get_variable("small", [OTHER_ROWS, 4], initializer=normal)
        wide = tf1.get_variable("wide", [ROWS], initializer=tf1.zeros_initializer())
        found = tf1.nn.embedding_lookup(large, features) + tf1.gather(small, features)
        found += psruntime.embedding(
            features * 1_000_003, "dynamic", 4, capacity=128, admit_after=2, expire_after_steps=50, initializer=normal
        )
        hidden = tf1.layers.dense(tf1.reduce_sum(found, axis=1), 3, kernel_initializer=normal)
        value = tf1.reduce_sum(hidden, axis=1) + tf1.reduce_sum(tf1.gather(wide, features), axis=1)
        return ModelSpec(tf1.reduce_mean(tf1.square(value - labels)), optimizer, 0.1)

    return Model("tests.deltas", input_fn, model_fn)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that gets a copy of the checkpoints each time that a delta was written, by its step."""
    publish = CheckpointFolder.publish_delta
    folder = tmp_path / "kept"

    def publish_and_keep(self: CheckpointFolder, new: Any) -> str:
        path = publish(self, new)
        copy = folder / str(step_of(path))
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.path, copy, ignore=shutil.ignore_patterns(".unfinished*"))
        return path

    monkeypatch.setattr(CheckpointFolder, "publish_delta", publish_and_keep)
    return folder


def changes_of(folder: Path) -> RowChanges:
    (file,) = folder.glob(f"*{ROWS_SUFFIX}")
    return RowChanges.of_text(file.read_text())


HOW = {
    "async 2 1": ("async", 2, 1),
    "async 2 3": ("async", 2, 3),
    "async 1 2": ("async", 1, 2),
    "sync 2 2": ("sync", 2, 2),
    "sync 3 2": ("sync", 3, 2),
}


@pytest.mark.long
@pytest.mark.parametrize("how", HOW)
def test_a_restore_of_a_delta_is_that_of_a_whole_checkpoint(how: str, tmp_path: Path, kept: Path) -> None:
    """To the bit, on another number of ps as well; here in chunks of a few rows."""
    mode, num_ps, then = HOW[how]
    model = tables_model()
    run = train(LocalCluster(num_ps), model, 7, mode=mode, checkpoint_dir=str(tmp_path / "run"), **EVERY)
    assert sorted(map(int, os.listdir(kept))) == [2, 4, 6, 7]
    for step in (2, 4, 6, 7):
        rows = changes_of(kept / str(step)).rows
        assert 0 < rows <= 5 * TOUCHED
    again = train(LocalCluster(then), model, 0, mode=mode, checkpoint_dir=str(kept / "7"), **EVERY)
    (restored,) = again.named("restored")
    assert restored["checkpoint"].endswith("model.ckpt-0.delta-7") and restored["global_step"] == 7
    same(run.saved(), again.saved())


@pytest.mark.long
@pytest.mark.parametrize("then", [3, 1, 2])
def test_after_a_restore_the_next_is_a_delta(then: int, tmp_path: Path, kept: Path) -> None:
    """It has what the restored one had, and what was touched since."""
    model = tables_model()
    train(LocalCluster(2), model, 3, checkpoint_dir=str(tmp_path / "run"), **EVERY)
    shutil.copytree(kept / "3", tmp_path / "next")
    shutil.rmtree(kept)
    run = train(LocalCluster(then), model, 4, checkpoint_dir=str(tmp_path / "next"), **EVERY)
    paths = [event["path"].rpartition("model.ckpt-")[2] for event in run.named("checkpoint")]
    assert paths == ["0.delta-5", "0.delta-7", "7"]
    again = train(LocalCluster(2), model, 0, checkpoint_dir=str(kept / "7"), **EVERY)
    assert again.named("restored")[0]["checkpoint"].endswith("model.ckpt-0.delta-7")
    same(run.saved(), again.saved())


@pytest.mark.long
@pytest.mark.parametrize("how", ["the chief writes", "each ps writes"])
def test_rows_are_moved_in_chunks(how: str, tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psruntime.graph.base.variable_values.CHUNK_BYTES", 480)
    if how == "the chief writes":
        steer(monkeypatch, *BLIND["sees another file"][:2])
    model = tables_model()
    run = train(LocalCluster(2), model, 3, checkpoint_dir=str(tmp_path / "run"), **EVERY)
    assert any(len(part.portions) > 1 for part in changes_of(kept / "3").parts)
    again = train(LocalCluster(3), model, 0, checkpoint_dir=str(kept / "3"))
    assert again.named("restored")[0]["sharded"].startswith("yes" if how == "each ps writes" else "no")
    same(run.saved(), again.saved())


OPTIMIZERS = {
    "lazy Adam": LazyAdam,
    "one entry a row": RowwiseAdagrad,
    "Ftrl": tf1.train.FtrlOptimizer,
}


@pytest.mark.long
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_slots_are_saved_by_rows_too(optimizer: str, tmp_path: Path, kept: Path) -> None:
    model = tables_model(OPTIMIZERS[optimizer])
    run = train(LocalCluster(2), model, 3, checkpoint_dir=str(tmp_path / "run"), **EVERY)
    delta = contents(str(kept / "3" / "model.ckpt-0.delta-3"))
    assert "dense/kernel" in delta and "large" not in delta
    same(run.saved(), train(LocalCluster(2), model, 0, checkpoint_dir=str(kept / "3")).saved())


@pytest.mark.long
def test_a_delta_is_no_larger_with_more_rows_that_are_not_touched(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.ROWS", 50_000)
    model = tables_model()
    train(LocalCluster(2), model, 3, checkpoint_dir=str(tmp_path / "run"), **EVERY)
    files = list((kept / "3").glob("*.delta-3.data*"))
    touched = sum(sum(part.portions) for part in changes_of(kept / "3").parts)
    of_dynamic_sets = 128 * 8 * 8  # at most all of them, which are few
    assert 0 < sum(file.stat().st_size for file in files) < touched * 64 + of_dynamic_sets + 1000


def restored_at(run: Run) -> list[int]:
    return [event["global_step"] for event in run.named("restored")]


@pytest.mark.long
@pytest.mark.parametrize("on_ps_loss", ["rollback", "partial"])
def test_after_the_loss_of_a_ps_deltas_go_on(on_ps_loss: str, tmp_path: Path, kept: Path) -> None:
    """On a ps that is new, and on one that went back; one that stayed knows of a newer one, so the next is whole."""
    cluster, model = LocalCluster(2), tables_model()
    settings = {"on_ps_loss": on_ps_loss, **EVERY}
    train(cluster, model, 3, checkpoint_dir=str(tmp_path / "run"), **settings)
    shutil.copytree(kept / "2", tmp_path / "older")
    shutil.rmtree(kept)
    cluster.forget(1)
    run = train(cluster, model, 3, checkpoint_dir=str(tmp_path / "older"), **settings)
    assert run.named("restored")[0]["checkpoint"].endswith("model.ckpt-0.delta-2")
    *deltas, last = [event["path"].rpartition("model.ckpt-")[2] for event in run.named("checkpoint")]
    wholes = [path for path in deltas if "delta" not in path]
    assert len(deltas) > len(wholes) == (on_ps_loss == "partial")
    again = train(LocalCluster(2), model, 0, checkpoint_dir=str(kept / last), **EVERY)
    same(run.saved(), again.saved())


@pytest.mark.long
def test_a_chief_that_takes_over_goes_on_with_deltas(tmp_path: Path, kept: Path) -> None:
    cluster, model = LocalCluster(2), tables_model()
    train(cluster, model, 2, checkpoint_dir=str(tmp_path / "run"), **EVERY)
    second = train(cluster, model, 2, checkpoint_dir=str(tmp_path / "run"), **EVERY)
    assert second.named("adopted")
    paths = [event["path"].rpartition("model.ckpt-")[2] for event in second.named("checkpoint")]
    assert paths == ["2.delta-4", "4"]


@pytest.mark.long
def test_a_whole_checkpoint_that_was_not_written_is_no_base(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy took the flags back, so a delta on the one before would lack rows: the next one is whole."""
    publish = CheckpointFolder.publish
    failures = [2]

    def fail_twice(self: CheckpointFolder, new: Any) -> str:
        if new.global_step > 0 and failures[0]:
            failures[0] -= 1
            raise OSError(28, "No space left on device")
        return publish(self, new)

    monkeypatch.setattr(CheckpointFolder, "publish", fail_twice)
    model = tables_model()
    run = train(LocalCluster(2), model, 9, checkpoint_dir=str(tmp_path / "run"), delta_every=2, save_steps=5)
    assert not failures[0] and len(run.named("checkpoint_failed")) == 1, "both failed, which is one line"
    again = train(LocalCluster(1), model, 0, checkpoint_dir=str(tmp_path / "run"))
    same(run.saved(), again.saved())
    for step in sorted(map(int, os.listdir(kept))):
        reference = train(LocalCluster(2), model, step, checkpoint_dir=str(tmp_path / f"reference_{step}"))
        restored = train(LocalCluster(2), model, 0, checkpoint_dir=str(kept / str(step)))
        same(reference.saved(), restored.saved())


DAMAGED = [
    (f"*.delta-3.{file}", how)
    for file in ("data*", "index", "state.json", "rows.json")
    for how in ("cut", "zeroed", "empty", "gone")
    if (file, how) not in (("index", "gone"), ("state.json", "gone"))  # never complete; read from the tensors
]


def damage(folder: Path, pattern: str, how: str) -> None:
    """Damages the files of this pattern, at least one."""
    files = list(folder.glob(pattern))
    assert files, pattern
    for file in files:
        content = file.read_bytes()
        if how == "gone":
            file.unlink()
        else:
            file.write_bytes({"cut": content[: len(content) // 2], "zeroed": bytes(len(content)), "empty": b""}[how])


@pytest.mark.long
def test_a_damaged_delta_is_passed_over(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of its files is damaged, however: the whole checkpoint comes back, and nothing of the delta is in it.

    A delta that is written then is what comes back after it.
    """
    monkeypatch.setattr("psruntime.graph.recovery.prepare.AGAIN_S", 0.0)
    model = tables_model()
    train(LocalCluster(2), model, 3, checkpoint_dir=str(tmp_path / "run"), **EVERY)
    assert newest_step(str(kept / "3")) == 3 and newest_step(str(kept / "3"), whole=True) == 0
    reference = None
    for number, (pattern, how) in enumerate(DAMAGED):
        folder = tmp_path / f"damaged-{number}"
        shutil.copytree(kept / "3", folder)
        damage(folder, pattern, how)
        again = train(LocalCluster(2), model, 0, checkpoint_dir=str(folder))
        told = again.named("checkpoint_damaged")
        assert len(told) == 2 and told[-1]["instead"].endswith("model.ckpt-0"), (pattern, how, told)
        assert restored_at(again) == [0]
        reference = reference or again.saved()
        same(reference, again.saved())
    again = train(LocalCluster(2), model, 2, checkpoint_dir=str(folder), **EVERY)
    assert [path.name for path in folder.glob("*.delta-*.index")] == ["model.ckpt-0.delta-2.index"]
    assert restored_at(train(LocalCluster(2), model, 0, checkpoint_dir=str(folder))) == [2]


@pytest.mark.long
def test_a_delta_of_another_checkpoint_is_not_read(tmp_path: Path, kept: Path) -> None:
    """Files that were mixed up by hand."""
    model = tables_model()
    train(LocalCluster(2), model, 3, checkpoint_dir=str(tmp_path / "run"), **EVERY)
    train(LocalCluster(2), model, 0, checkpoint_dir=str(tmp_path / "other"))
    for file in (tmp_path / "other").glob("model.ckpt-0.*"):
        shutil.copy(file, kept / "3")
    again = train(LocalCluster(2), model, 0, checkpoint_dir=str(kept / "3"))
    assert "it is a delta of another" in str(again.named("checkpoint_damaged")[0]["reason"])
    assert restored_at(again) == [0]


@pytest.mark.long
def test_what_a_whole_checkpoint_replaces_is_removed(tmp_path: Path) -> None:
    model = tables_model()
    run = train(LocalCluster(2), model, 9, checkpoint_dir=str(tmp_path), delta_every=1, save_steps=4, keep=2)
    deltas = sorted(path.name for path in tmp_path.glob("*.delta-*.index"))
    assert deltas == ["model.ckpt-8.delta-9.index"], run.named("checkpoint")
    np.testing.assert_array_equal(
        sorted(path.name for path in tmp_path.glob("*.index")),
        ["model.ckpt-8.delta-9.index", "model.ckpt-8.index", "model.ckpt-9.index"],
    )


@pytest.mark.long
def test_a_table_in_parts_is_restored_into_other_parts(tmp_path: Path, kept: Path) -> None:
    def model(parts: int) -> Model:
        whole = tables_model()

        def model_fn(*arguments: Any) -> ModelSpec:
            with tf1.variable_scope("", partitioner=tf1.fixed_size_partitioner(parts) if parts > 1 else None):
                return whole.model_fn(*arguments)

        return Model(whole.name, whole.input_fn, model_fn)

    run = train(LocalCluster(2), model(3), 3, checkpoint_dir=str(tmp_path / "run"), **EVERY)
    again = train(LocalCluster(2), model(2), 0, checkpoint_dir=str(kept / "3"))
    assert restored_at(again) == [3]
    same(run.saved(), again.saved())


@pytest.mark.long
def test_a_mixture_of_tables(tmp_path: Path, kept: Path) -> None:
    """Under Adam all rows of a table are in a delta; of one that nothing trains none are, as they do not change."""
    model = tables_model({"small": tf1.train.AdamOptimizer, "*": ADAGRAD})

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        frozen = tf1.get_variable("frozen", [40, 2], trainable=False, initializer=tf1.ones_initializer())
        spec = model.model_fn(features, labels, mode)
        tf1.get_variable("unused", [40, 2])
        return replace(spec, loss=spec.loss + tf1.reduce_mean(tf1.gather(frozen, features)))

    mixed = Model(model.name, model.input_fn, model_fn)
    run = train(LocalCluster(2), mixed, 3, checkpoint_dir=str(tmp_path / "run"), **EVERY)
    delta = contents(str(kept / "3" / "model.ckpt-0.delta-3"))
    assert {"small", "small/Adam", "dense/kernel"} <= delta.keys()
    assert not {"large", "wide", "frozen", "dynamic"} & delta.keys()
    same(run.saved(), train(LocalCluster(3), mixed, 0, checkpoint_dir=str(kept / "3")).saved())


@pytest.mark.long
def test_without_tables_that_are_saved_by_rows_there_are_no_deltas(tmp_path: Path) -> None:
    run = train(LocalCluster(1), tables_model(tf1.train.AdamOptimizer), 5, checkpoint_dir=str(tmp_path), **EVERY)
    assert [event["path"].rpartition("-")[2] for event in run.named("checkpoint")] == ["5"]
    assert run.named("no_deltas")
