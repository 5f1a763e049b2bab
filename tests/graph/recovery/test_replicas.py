"""The loss of a ps is made good from the copy on the next one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import APPLIED, RECEIVED, ROLLED_BACK, is_balanced
from psruntime.core.members.messages import Assignment
from psruntime.graph.recovery.replicas import Replicas
from tests.graph.recovery.test_lost_work import Refused, after
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.local_cluster import INCARNATION, LocalCluster, LocalControlPlane, Run, linear_model, train

ADAM = linear_model(OPTIMIZERS["adam"])
SETTINGS = {"slice_bytes": 64, "replicate_every": 3}


def held(run: Run) -> dict[str, Any]:
    """Masters and the optimizer's own variables, by name; and the ps of each."""
    stores = run.graph.model.stores.values()
    variables = [s.master for s in stores] + [v for o in run.graph.optimizers.values() for v in o.variables]
    with run.cluster.session(run.graph.graph) as session:
        values: dict[str, Any] = session.run({v.op.name: v.read_value() for v in variables})
    return values


def ps_of(run: Run, name: str) -> int:
    return int(run.graph.graph.get_operation_by_name(name).device.partition("task:")[2][0])


def go_on(cluster: LocalCluster, steps: int, incarnation: int = INCARNATION + 1, **settings: Any) -> Run:
    """The worker's next incarnation: its pushes are numbered anew."""
    cluster.fence({0: incarnation})
    return train(
        cluster,
        ADAM,
        steps,
        make_control_plane=lambda view, count: LocalControlPlane(view, count, incarnation),
        **settings,
    )


def counts(run: Run, ps: int) -> set[tuple[int, ...]]:
    ledgers = run.cluster.ledgers(run.graph.plan)
    names = [bucket.name for bucket in run.graph.plan.on(ps)]
    assert all(is_balanced(row) for row in ledgers.values())
    return {tuple(int(n) for n in ledgers[name][[RECEIVED, APPLIED, ROLLED_BACK]]) for name in names}


@pytest.mark.long
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_async_only_the_lost_buckets_come_back(lost: int) -> None:
    """Copies at steps 1, 4 and 7; at step 8 a ps is lost: its buckets are those of step 7."""
    cluster = LocalCluster(3)
    at_seven = held(train(LocalCluster(3), ADAM, 7, **SETTINGS))
    first = train(cluster, ADAM, 8, **SETTINGS)
    live = held(first)
    cluster.forget(lost)
    second = go_on(cluster, 0, **SETTINGS)
    (event,) = second.named("restored")
    assert (event["replica"], event["only_ps"], event["fresh_ps"]) == (7, str(lost), 1)
    after = held(second)
    for name, value in after.items():
        np.testing.assert_array_equal(value, (at_seven if ps_of(second, name) == lost else live)[name], err_msg=name)
    assert second.control_plane.prepared_at == [7 if lost == 0 else 8]
    for ps in range(3):
        assert counts(second, ps) <= {(7, 7, 0) if ps == lost else (8, 8, 0)}
    third = go_on(cluster, 4, INCARNATION + 2, **SETTINGS)
    assert [result.dropped for result in third.results] == [0] * 4


@pytest.mark.long
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_no_copy_is_wanted_of_a_ps_without_variables(mode: str) -> None:
    """The copy of ps 0 is on ps 1; ps 2 is lost with it, and its copy would have been on ps 0."""
    settings = {"mode": mode, "min_ps_bytes": 1 << 20, **SETTINGS}
    at_seven = held(train(LocalCluster(3), ADAM, 7, **settings))
    cluster = LocalCluster(3)
    assert train(cluster, ADAM, 8, **settings).graph.empty_ps == {1, 2}
    cluster.forget(0)
    cluster.forget(2)
    second = go_on(cluster, 0, **settings)
    (event,) = second.named("restored")
    assert event["replica"] == 7 - (mode == "sync")
    if mode == "async":
        for name, value in held(second).items():
            np.testing.assert_array_equal(value, at_seven[name], err_msg=name)
    assert go_on(cluster, 2, INCARNATION + 2, **settings).named("adopted")


@pytest.mark.long
def test_a_copy_may_travel_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few numbers; what comes back is the same."""
    monkeypatch.setattr("psruntime.graph.base.variable_values.CHUNK_BYTES", 16)
    cluster, settings = LocalCluster(2), {**SETTINGS, "slice_bytes": 1 << 20}
    live = held(train(cluster, ADAM, 4, **settings))  # copied at steps 1 and 4
    cluster.forget(1)
    second = go_on(cluster, 0, **settings)
    assert [event["replica"] for event in second.named("restored")] == [4]
    moved = [op for op in second.graph.graph.get_operations() if op.type == "ResourceStridedSliceAssign"]
    assert len(moved) > 10
    for name, value in held(second).items():
        np.testing.assert_array_equal(value, live[name], err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_sync_all_return_to_the_same_round(lost: int) -> None:
    """In a round the copy is made before it closes: at rounds 0, 3 and 6 of the eight."""
    settings = {**SETTINGS, "mode": "sync"}
    cluster = LocalCluster(3)
    train(cluster, ADAM, 8, **settings)
    cluster.forget(lost)
    second = go_on(cluster, 0, **settings)
    (event,) = second.named("restored")
    assert event["replica"] == event["global_step"] == 6 and "only_ps" not in event
    expected = held(train(LocalCluster(3), ADAM, 6, **settings))
    for name, value in held(second).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
    for ps in range(3):
        of_lost = counts(second, ps)
        assert {(applied, rolled_back) for _, applied, rolled_back in of_lost} <= {(6, 0 if ps == lost else 2)}
    assert second.control_plane.steps_lost == (
        0 if lost == 0 else 2
    )  # without ps 0 the chief does not know it from the ps


@pytest.mark.long
def test_sync_a_torn_round_goes_back_to_the_copy_that_all_keep() -> None:
    """Nobody was lost; there is no checkpoint."""

    class Torn(LocalControlPlane):
        def await_view(self) -> Assignment:
            return replace(super().await_view(), restore=self.prepare)

    settings = {**SETTINGS, "mode": "sync"}
    cluster = LocalCluster(2)
    train(cluster, ADAM, 8, **settings)
    second = train(cluster, ADAM, 0, make_control_plane=Torn, **settings)
    (event,) = second.named("restored")
    assert (event["replica"], event["fresh_ps"], event["reason"]) == (6, 0, "a round was torn")
    expected = held(train(LocalCluster(2), ADAM, 6, **settings))
    for name, value in held(second).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


@pytest.mark.long
def test_a_copy_that_was_cut_off_is_not_used(monkeypatch: Any) -> None:
    """From step 5 on nothing that is sent arrives whole: the copy of step 4 brings the ps back."""
    send = Replicas.send

    def cut_off(self: Replicas, session: Any, incarnation: int) -> None:
        if self._begun[1].global_step > 4:
            self._fence.run(session, incarnation, self._buffers[self._begun[0]][1].send[::2])
            raise tf1.errors.UnavailableError(None, None, "a ps was lost on purpose")
        send(self, session, incarnation)

    monkeypatch.setattr(Replicas, "send", cut_off)
    cluster = LocalCluster(2)
    first = train(cluster, ADAM, 11, **SETTINGS)
    assert [event["reason"] for event in first.named("replica_failed")] == ["a ps was lost on purpose"] * 2
    cluster.forget(1)
    second = go_on(cluster, 0, **SETTINGS)
    assert second.named("restored")[0]["replica"] == 4
    expected = held(train(LocalCluster(2), ADAM, 4, **SETTINGS))
    for name, value in held(second).items():
        if ps_of(second, name) == 1:
            np.testing.assert_array_equal(value, expected[name], err_msg=name)


@pytest.mark.long
def test_the_newer_of_checkpoint_and_replica(tmp_path: Path) -> None:
    settings = {**SETTINGS, "checkpoint_dir": str(tmp_path)}
    cluster = LocalCluster(2)
    train(cluster, ADAM, 8, **settings)  # the last checkpoint is of step 8, the last replica of step 7
    cluster.forget(1)
    second = go_on(cluster, 1, **settings)
    assert "checkpoint" in second.named("restored")[0] and second.control_plane.prepared_at == [8]
    cluster.forget(1)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-0"\n')
    third = go_on(cluster, 1, INCARNATION + 2, **settings)
    assert third.named("restored")[0]["replica"] == 9, "the replicas from before the restore are forgotten"


@pytest.mark.long
def test_without_holder_or_replica_all_begins_anew() -> None:
    cluster = LocalCluster(2)
    train(cluster, ADAM, 5, **SETTINGS)
    cluster.forget(0)
    cluster.forget(1)
    assert go_on(cluster, 0, **SETTINGS).named("initialised")[0]["global_step"] == 0


@pytest.mark.long
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_copies_beside_the_variables_stay_in_mode_sync_only(mode: str) -> None:
    cluster = LocalCluster(2)
    run = train(cluster, ADAM, 4, mode=mode, **SETTINGS)
    handles = [op for op in run.graph.graph.get_operations() if op.type == "VarHandleOp"]
    shared = {op.get_attr("shared_name").decode(): op for op in handles}
    with run.graph.graph.as_default():
        is_there = {name: tf1.raw_ops.VarIsInitializedOp(resource=op.outputs[0]) for name, op in shared.items()}
    with cluster.session(run.graph.graph) as session:
        there = session.run(is_there)
    assert {there[name] for name in there if name.endswith(("replica_0", "replica_1"))} == {True}, "both buffers"
    assert {there[name] for name in there if name.endswith("_own")} == {mode == "sync"}


def test_a_replica_is_enough_where_the_checkpoint_cannot_be_read(tmp_path: Path) -> None:
    cluster, settings = LocalCluster(2), {"checkpoint_dir": str(tmp_path), "save_steps": 4, **SETTINGS}
    train(cluster, ADAM, 4, **settings)
    for path in tmp_path.glob("model.ckpt-*"):
        path.write_bytes(b"no checkpoint")
    cluster.forget(1)
    run = go_on(cluster, 0, **settings)
    (event,) = run.named("restored")
    assert (event["replica"], event["only_ps"]) == (4, "1")
    assert not run.named("checkpoint_damaged")


@pytest.mark.long
def test_a_replica_that_is_older_than_a_checkpoint_elsewhere_is_not_taken(tmp_path: Path) -> None:
    """Copies at steps 1 and 4; the chief does not see the folder of the others."""
    cluster = LocalCluster(2)
    train(cluster, ADAM, 5, checkpoint_dir=str(tmp_path / "a"), **SETTINGS)
    cluster.forget(1)
    here = {"checkpoint_dir": str(tmp_path / "b"), **SETTINGS}
    with pytest.raises(Refused, match="checkpoint 5 was written, and is not in"):
        train(cluster, ADAM, 0, make_control_plane=after(5), **here)
    run = train(cluster, ADAM, 0, make_control_plane=after(4), **here)
    assert [event["replica"] for event in run.named("restored")] == [4]
