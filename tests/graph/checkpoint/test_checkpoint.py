"""Checkpoints and preparation: what is restored, from where, and what is refused."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import APPLIED
from psruntime.errors import CheckpointError, JobFailedError, StopRequested, UsageError
from psruntime.graph.base.errors import LOST_SESSION
from psruntime.graph.buckets.bucket_store import RESTORE_LEAP
from psruntime.graph.checkpoint.folder import CheckpointFolder
from psruntime.graph.checkpoint.transfer import Reader
from psruntime.graph.recovery.ps_values import PreparedFlags
from psruntime.model import ModelSpec
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.local_cluster import INCARNATION, LocalCluster, LocalControlPlane, linear_model, train
from tests.support.selection import long_but

ADAM = linear_model(OPTIMIZERS["adam"])


def test_names_are_the_models_own_and_stock_tensorflow_reads_them(tmp_path: Any) -> None:
    run = train(LocalCluster(2), ADAM, 3, slice_bytes=64, checkpoint_dir=str(tmp_path))
    shapes = tf1.train.load_checkpoint(str(tmp_path)).get_variable_to_shape_map()
    variables = {"hidden/kernel": [5, 16], "hidden/bias": [16], "out": [16, 1]}
    slots = {f"{name}/{slot}": shape for name, shape in variables.items() for slot in ("Adam", "Adam_1")}
    powers = {f"{name}/{power}": [] for name in variables for power in ("beta1_power", "beta2_power")}
    stock = {"beta1_power": [], "beta2_power": []}
    assert shapes == {**variables, **slots, **powers, **stock, "global_step": []}
    assert run.named("initialised")[0]["checkpoint"].endswith("model.ckpt-0")
    assert [event["path"].rsplit("-", 1)[1] for event in run.named("checkpoint")] == ["3"]


@pytest.mark.parametrize("layout", long_but([(3, 64)], [(1, 1 << 24), (3, 64)]))
def test_any_number_of_ps_goes_on_from_any_other(layout: tuple[int, int], tmp_path: Any) -> None:
    num_ps, slice_bytes = layout
    folder = str(tmp_path)
    before = train(LocalCluster(2), ADAM, 4, slice_bytes=128, checkpoint_dir=folder).saved()
    run = train(LocalCluster(num_ps), ADAM, 0, slice_bytes=slice_bytes, checkpoint_dir=folder)
    assert run.control_plane.prepared_at == [4]
    np.testing.assert_equal(run.saved(), before)


@pytest.mark.long
def test_the_learning_rate_goes_on_where_it_was(tmp_path: Any) -> None:
    asked: list[int] = []

    def rate(step: int) -> float:
        asked.append(step)
        return 0.1

    for _ in range(2):
        train(LocalCluster(1), linear_model(OPTIMIZERS["sgd"], learning_rate=rate), 3, checkpoint_dir=str(tmp_path))
    assert asked == [0, 1, 2, 3, 4, 5]


def test_saves_every_so_many_steps_and_keeps_so_many(tmp_path: Any) -> None:
    train(LocalCluster(1), ADAM, 10, save_steps=3, keep=2, checkpoint_dir=str(tmp_path))
    assert sorted(p.name for p in tmp_path.glob("*.index")) == ["model.ckpt-10.index", "model.ckpt-9.index"]


def test_live_variables_are_adopted_not_rolled_back(tmp_path: Any) -> None:
    cluster = LocalCluster(2)
    train(cluster, ADAM, 5, save_steps=1000, checkpoint_dir=str(tmp_path))
    for path in tmp_path.glob("model.ckpt-5*"):
        path.unlink()
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-0"\n')
    again = train(cluster, ADAM, 1, checkpoint_dir=str(tmp_path))
    assert again.control_plane.prepared_at == [5]
    assert again.named("adopted")


@pytest.mark.long
def test_a_replaced_ps_takes_all_back_to_the_checkpoint(tmp_path: Any) -> None:
    cluster = LocalCluster(2)
    first = train(cluster, ADAM, 4, slice_bytes=64, checkpoint_dir=str(tmp_path))
    saved = first.saved()
    survivor = first.graph.plan.on(0)[0].name
    cluster.forget(1)
    second = train(cluster, ADAM, 0, slice_bytes=64, checkpoint_dir=str(tmp_path))
    assert second.named("restored")[0]["fresh_ps"] == 1
    for name, value in saved.items():
        np.testing.assert_array_equal(second.saved()[name], value, err_msg=name)
    with cluster.session(first.graph.graph) as session:
        assert set(session.run(first.graph.model.versions[survivor])) == {4 + RESTORE_LEAP}


@pytest.mark.long
def test_a_preparation_that_was_cut_off_is_begun_anew_and_keeps_the_books(tmp_path: Any) -> None:
    cluster = LocalCluster(2)
    first = train(cluster, ADAM, 4, checkpoint_dir=str(tmp_path))
    with first.graph.graph.as_default():
        unmark = [control.prepared.assign(-first.graph.plan.marker) for control in first.graph.controls]
    with cluster.session(first.graph.graph) as session:
        session.run(unmark)
    run = train(cluster, ADAM, 0, checkpoint_dir=str(tmp_path))
    assert run.named("restored")[0]["fresh_ps"] == 0
    assert {ledger[APPLIED] for ledger in cluster.ledgers(run.graph.plan).values()} == {4}
    with cluster.session(run.graph.graph) as session:
        versions = np.concatenate(session.run(list(run.graph.model.versions.values())))
        assert set(versions) == {4 + RESTORE_LEAP}


@pytest.mark.long
def test_one_that_was_cut_off_as_it_began_keeps_the_books_of_a_fresh_ps(tmp_path: Any, monkeypatch: Any) -> None:
    train(LocalCluster(2), ADAM, 4, checkpoint_dir=str(tmp_path))
    begin, cut_off = PreparedFlags.begin, []

    def begin_and_end(self: PreparedFlags, session: Any, *args: Any) -> None:
        begin(self, session, *args)
        if not cut_off:
            cut_off.append(1)
            raise tf1.errors.UnavailableError(None, None, "cut off")

    class Patient(LocalControlPlane):
        def back_off(self, why: str) -> None:
            assert "cut off" in why

    monkeypatch.setattr(PreparedFlags, "begin", begin_and_end)
    cluster = LocalCluster(2)
    run = train(cluster, ADAM, 0, checkpoint_dir=str(tmp_path), make_control_plane=Patient)
    assert cut_off and run.control_plane.prepared_at == [4]
    assert {ledger[APPLIED] for ledger in cluster.ledgers(run.graph.plan).values()} == {4}


@pytest.mark.long
def test_a_chief_that_was_replaced_while_it_read_writes_nothing(tmp_path: Any, monkeypatch: Any) -> None:
    """Its incarnation was admitted when it looked, and is not when the file has been read."""
    train(LocalCluster(1), ADAM, 4, checkpoint_dir=str(tmp_path))
    cluster = LocalCluster(1)
    read = Reader.read

    class Changing(LocalControlPlane):
        def back_off(self, why: str) -> None:
            raise StopRequested(why)

    def read_late(self: Reader, *args: Any) -> None:
        cluster.fence({0: INCARNATION + 1})
        read(self, *args)

    monkeypatch.setattr(Reader, "read", read_late)
    with pytest.raises(StopRequested, match="ps 0 does not admit incarnation"):
        train(cluster, ADAM, 0, checkpoint_dir=str(tmp_path), make_control_plane=Changing)
    monkeypatch.undo()
    cluster.fence({0: INCARNATION})
    run = train(cluster, ADAM, 0)  # without the folder: what is there now
    assert run.named("initialised")[0]["fresh_ps"] == 0


@pytest.mark.long
def test_a_chief_that_was_replaced_writes_nothing() -> None:
    cluster = LocalCluster(2)
    cluster.fence({0: INCARNATION + 1})  # its successor's

    class Changing(LocalControlPlane):
        def back_off(self, why: str) -> None:
            raise StopRequested(why)

    with pytest.raises(StopRequested, match="ps 0 does not admit incarnation"):
        train(cluster, ADAM, 1, make_control_plane=Changing)
    cluster.fence({0: INCARNATION})
    assert train(cluster, ADAM, 1).named("initialised")[0]["fresh_ps"] == 2


@pytest.mark.long
def test_a_session_on_a_ps_that_is_not_prepared_is_not_used() -> None:
    cluster = LocalCluster(2)
    train(cluster, ADAM, 1)
    cluster.forget(1)

    class Changing(LocalControlPlane):
        prepare = False

        def __init__(self, view: Any, steps: int) -> None:
            super().__init__(view, steps, prepare=False)

        def back_off(self, why: str) -> None:
            raise StopRequested(why)

    with pytest.raises(StopRequested, match="no session on view 1: ps 1 is not prepared"):
        train(cluster, ADAM, 1, make_control_plane=Changing)


@pytest.mark.long
def test_more_ps_than_buckets() -> None:
    cluster = LocalCluster(5)
    run = train(cluster, ADAM, 2)
    empty = [ps for ps in range(5) if not run.graph.plan.on(ps)]
    assert empty
    for ps, state in enumerate(cluster.states):
        state.set_plan(run.graph.plan)
        stats, global_step = state.read()
        assert (stats.received, global_step) == (2 * stats.buckets, 2 if ps == 0 else 0)
        assert state.unbalanced() == []


def test_a_ledger_that_does_not_balance_is_found_by_its_bucket() -> None:
    cluster = LocalCluster(1)
    run = train(cluster, ADAM, 2)
    name, store = next(iter(run.graph.model.stores.items()))
    with run.graph.graph.as_default():
        spoil = store.section.ledger[store.place, 0].assign(store.ledger()[0] + 1)
    with cluster.session(run.graph.graph) as session:
        session.run(spoil)
    cluster.states[0].set_plan(run.graph.plan)
    assert cluster.states[0].unbalanced() == [name]


@pytest.mark.long
@pytest.mark.parametrize("lost", ["*.index", "*.data-*"])
def test_a_checkpoint_whose_files_are_gone_is_named(lost: str, tmp_path: Any) -> None:
    train(LocalCluster(1), ADAM, 1, checkpoint_dir=str(tmp_path))
    for path in tmp_path.glob(lost):
        path.unlink()
    with pytest.raises(
        CheckpointError, match=r"model\.ckpt-1 (is missing but listed|cannot be read).*bring its files back"
    ):
        train(LocalCluster(1), ADAM, 1, checkpoint_dir=str(tmp_path))


@pytest.mark.long
def test_keep_counts_the_files_of_earlier_chiefs(tmp_path: Any) -> None:
    for _ in range(3):
        train(LocalCluster(1), ADAM, 2, keep=2, checkpoint_dir=str(tmp_path))
    assert sorted(p.name for p in tmp_path.glob("*.index")) == ["model.ckpt-4.index", "model.ckpt-6.index"]


@pytest.mark.long
def test_without_a_folder_a_replaced_ps_begins_anew() -> None:
    cluster = LocalCluster(2)
    train(cluster, ADAM, 4)
    cluster.forget(1)
    run = train(cluster, ADAM, 2)
    assert run.control_plane.prepared_at == [0]
    ledgers = cluster.ledgers(run.graph.plan)
    assert all(ledger[APPLIED] >= 2 for ledger in ledgers.values())


@pytest.mark.long
def test_variables_of_another_plan_are_not_touched() -> None:
    cluster = LocalCluster(2)
    train(cluster, ADAM, 2)
    with pytest.raises(JobFailedError, match="ps 0 has the variables of another plan; restart it"):
        train(cluster, ADAM, 2, slice_bytes=64)


def test_a_checkpoint_of_another_model_is_refused_by_names(tmp_path: Any) -> None:
    train(LocalCluster(1), ADAM, 1, checkpoint_dir=str(tmp_path))

    def wider(features: Any, labels: Any, mode: str) -> ModelSpec:
        spec = ADAM.model_fn(features, labels, mode)
        extra = tf1.get_variable("extra", [3])
        return dataclasses.replace(spec, loss=spec.loss + tf1.reduce_sum(extra))

    with pytest.raises(
        CheckpointError, match="does not fit the model: extra is missing there, float32\\[3\\] in the model"
    ):
        train(LocalCluster(1), dataclasses.replace(ADAM, model_fn=wider), 1, checkpoint_dir=str(tmp_path))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(CheckpointError, match=r"folder .*/file/sub cannot be written: Not a directory"):
        train(LocalCluster(1), ADAM, 1, checkpoint_dir=str(tmp_path / "file" / "sub"))


def test_after_some_time_a_checkpoint_is_due_whatever_the_steps(tmp_path: Any) -> None:
    run = train(LocalCluster(1), ADAM, 4, save_steps=1000, save_secs=0.001, checkpoint_dir=str(tmp_path))
    saved = [event["path"].rpartition("-")[2] for event in run.named("checkpoint")]
    assert saved[:2] == ["1", "2"] and saved[-1] == "4"


class Wanting(LocalControlPlane):
    """Wants a checkpoint all the time."""

    def wants_checkpoint(self) -> bool:
        return True


def test_one_that_was_due_before_its_steps_and_failed_is_tried_again_a_tenth_of_them_later(
    tmp_path: Any, monkeypatch: Any
) -> None:
    """Not with the next step, although somebody waits for it."""
    publish = CheckpointFolder.publish
    failed: list[int] = []

    def fail_once(self: Any, new: Any) -> str:
        if new.global_step > 0 and not failed:
            failed.append(new.global_step)
            raise OSError(28, "No space left on device")
        return publish(self, new)

    monkeypatch.setattr(CheckpointFolder, "publish", fail_once)
    model = linear_model(OPTIMIZERS["sgd"], learning_rate=lambda step: time.sleep(0.1) or 0.1)  # a write ends meanwhile
    settings = {"save_steps": 30, "checkpoint_dir": str(tmp_path)}
    run = train(LocalCluster(1), model, 9, make_control_plane=Wanting, **settings)
    saved = [int(event["path"].rpartition("-")[2]) for event in run.named("checkpoint")]
    assert len(run.named("checkpoint_failed")) == 1 and saved[0] == failed[0] + 3


def test_a_periodic_save_that_fails_is_reported_and_training_goes_on(tmp_path: Any, monkeypatch: Any) -> None:
    folder = tmp_path / "checkpoints"
    moved = tmp_path / "moved"

    def lose_folder(step: int) -> float:
        if step == 2:
            folder.rename(moved)
            folder.write_text("in the way")
        if step == 5:
            folder.unlink()
            moved.rename(folder)
        return 0.1

    model = linear_model(OPTIMIZERS["sgd"], learning_rate=lose_folder)
    run = train(LocalCluster(1), model, 12, save_steps=3, checkpoint_dir=str(folder))
    assert run.named("checkpoint_failed")
    assert run.checkpoints.latest().endswith("model.ckpt-12")


@pytest.mark.long
def test_a_loss_that_is_not_finite_stops_the_job_and_poisons_nothing(tmp_path: Any) -> None:
    cluster = LocalCluster(1)
    with pytest.raises(JobFailedError, match=r"the loss is nan at global step 3; its gradient was not applied"):
        train(cluster, poisoned(at=3), 10, checkpoint_dir=str(tmp_path))
    run = train(LocalCluster(1), poisoned(at=3), 10, on_nan="continue")
    everything = len(run.graph.plan.buckets) + 1  # and the global step
    assert [r.dropped for r in run.results] == [0, 0, 0, everything, 0, 0, 0, 0, 0, 0]
    assert np.isfinite([r.loss for r in run.results[4:]]).all()
    assert run.results[-1].global_step == 9


def poisoned(at: int) -> Any:
    """ADAM's model with a batch `at` (from 0) whose loss is not a number."""

    def input_fn(context: Any) -> Any:
        dataset = ADAM.input_fn(context).enumerate()
        return dataset.map(lambda i, xy: (tf1.where(tf1.equal(i, at), xy[0] * float("nan"), xy[0]), xy[1]))

    return dataclasses.replace(ADAM, input_fn=input_fn)


def test_an_optimizer_of_another_kind_is_refused() -> None:
    import tf_keras

    with pytest.raises(UsageError, match=r"it must make a tf\.compat\.v1\.train\.Optimizer"):
        train(LocalCluster(1), linear_model(tf_keras.optimizers.SGD), 1)


def test_a_session_that_is_closed_for_another_is_no_failure_of_the_folder(tmp_path: Any) -> None:
    """As by a change of mode: a checkpoint that a command asked for is then made in the next session."""
    run = train(LocalCluster(1), ADAM, 2, checkpoint_dir=str(tmp_path))
    before = run.checkpoints.latest()
    with run.cluster.session(run.graph.graph) as session:
        copied = run.checkpoints.copy(session, is_paused=True)
    with pytest.raises(LOST_SESSION, match="closed Session"):
        run.checkpoints.write(session, copied)
    assert run.checkpoints.latest() == before
