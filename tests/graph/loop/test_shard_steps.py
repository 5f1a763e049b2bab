"""Steps and rounds over data shards: the variables hold each example of each epoch, and a checkpoint says which."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import STALE
from psruntime.core.members.messages import Assignment, Prepared
from psruntime.core.rounds.round_messages import Action, ActionKind, Starved
from psruntime.core.shards.shard_messages import Position, Sharding
from psruntime.core.shards.shards import Shards
from psruntime.graph.loop import async_loop
from psruntime.model import Model
from tests.support.local_cluster import LocalCluster, LocalControlPlane, Run, train
from tests.support.round_control_plane import RoundControlPlane
from tests.support.selection import long_but
from tests.support.shards import LocalShards, LockedShards, counting_model

EXAMPLES, SIZE = 50, 16  # 3 shards of 2 batches, and one of 2 examples
SHARDING = Sharding(EXAMPLES, SIZE)
NEVER = 10_000
MODEL = counting_model(EXAMPLES, SIZE)


class Pushing(LocalControlPlane):
    """Trains until all epochs are done.  prepared: what the chief reports of each view."""

    def __init__(self, shards: Shards, *args: Any) -> None:
        super().__init__(*args)
        self.shards = LocalShards(shards, self.incarnation)
        self.prepared: list[Prepared] = []

    def may_step(self, under_way: int = 0) -> bool:
        return super().may_step(under_way) and not self.shards.shards.over

    def report_prepared(self, assignment: Assignment, prepared: Prepared) -> None:
        self.prepared.append(prepared)
        if prepared.position:
            self.shards.shards.restore(prepared.position)
        super().report_prepared(assignment, prepared)


class InRounds(RoundControlPlane):
    """The same in rounds: what of a shard is in the variables is known by the rounds that are closed."""

    def __init__(self, shards: Shards, *args: Any) -> None:
        super().__init__(*args)
        self.shards = LocalShards(shards, self.incarnation)
        self.prepared: list[Prepared] = []
        self.starved: list[str] = []

    def report_prepared(self, assignment: Assignment, prepared: Prepared) -> None:
        self.prepared.append(prepared)
        if prepared.position:
            self.shards.shards.restore(prepared.position)
        super().report_prepared(assignment, prepared)

    def next_action(self, assignment: Assignment, done: Any, starved: Starved | None = None) -> Action | None:
        if starved:
            self.starved.append(starved.reason)
        action = super().next_action(assignment, done, starved)
        return None if self.shards.shards.over and action and action.kind is not ActionKind.APPLY else action

    def _record(self, past: Any) -> None:
        super()._record(past)
        for part in past.parts if past else []:
            self.shards.shards.applied(part.incarnation, part.shard_batches)


def counts(run: Run) -> Any:
    """How often each example is in the last checkpoint."""
    path = run.checkpoints.latest()
    assert path
    return tf1.train.load_checkpoint(path).get_tensor("counts")


def trained(cluster: LocalCluster, folder: Any, mode: str, shards: Shards, model: Model = MODEL, **more: Any) -> Run:
    make: Callable[..., Any] = more.pop("make", InRounds if mode == "sync" else Pushing)
    settings = {"save_steps": NEVER, "checkpoint_dir": str(folder), **more}
    return train(cluster, model, NEVER, make_control_plane=partial(make, shards), mode=mode, **settings)


@pytest.mark.parametrize(
    "more", long_but([{"mode": "sync"}], [{}, {"pipeline": 3}, {"mode": "sync"}]), ids=["async", "pipeline", "sync"]
)
def test_each_example_of_each_epoch_is_in_the_variables_once(
    cluster: LocalCluster, tmp_path: Any, more: dict[str, Any]
) -> None:
    shards = LockedShards(epochs=3)
    run = trained(cluster, tmp_path, more.pop("mode", "async"), shards, **more)
    np.testing.assert_array_equal(counts(run), np.full(EXAMPLES, 3.0))
    assert shards.position == Position(4, (), SHARDING)


@pytest.mark.parametrize("mode", long_but(["sync"], ["async", "sync"]))
def test_what_a_checkpoint_says_is_done_is_in_it_and_a_resumed_job_goes_on_there(
    cluster: LocalCluster, tmp_path: Any, mode: str
) -> None:
    shards = LockedShards(epochs=3)
    run = trained(cluster, tmp_path, mode, shards, save_steps=5, keep=100)
    paths = sorted(tmp_path.glob("*.index"), key=lambda path: int(path.stem.rpartition("-")[2]))
    assert len(paths) > 2
    for path in map(str, paths):
        prefix = path.removesuffix(".index")
        position = run.checkpoints.state(prefix).position or Position()
        held = tf1.train.load_checkpoint(prefix).get_tensor("counts")
        assert (held >= position.epoch - 1).all(), "whole epochs"
        of_epoch = LockedShards()
        of_epoch.restore(position)
        of_epoch.agree(SHARDING)
        left: set[int] = set()
        while shard := of_epoch.take(1, max(of_epoch._taken, default=0)).shard:
            left |= set(range(shard.begin, shard.end))
        assert all(held[i] >= position.epoch for i in range(EXAMPLES) if i not in left), (
            "what is done of the present one"
        )
    cluster.forget(0)
    cluster.forget(1)
    again = LockedShards(epochs=5)
    resumed = trained(cluster, tmp_path, mode, again)
    assert resumed.named("restored")
    np.testing.assert_array_equal(counts(resumed), np.full(EXAMPLES, 5.0))


@pytest.mark.long
def test_a_checkpoint_without_a_position_begins_at_the_first_epoch(cluster: LocalCluster, tmp_path: Any) -> None:
    shards = LockedShards(epochs=1)
    run = trained(cluster, tmp_path, "async", shards)
    for state in tmp_path.glob("*.state.json"):
        state.unlink()
    cluster.forget(0)
    cluster.forget(1)
    again = LockedShards(epochs=1)
    resumed = trained(cluster, tmp_path, "async", again)
    assert run.control_plane.prepared[0].position == resumed.control_plane.prepared[0].position == Position()
    np.testing.assert_array_equal(counts(resumed), np.full(EXAMPLES, 2.0))


@pytest.mark.long
def test_live_variables_keep_the_position(cluster: LocalCluster, tmp_path: Any) -> None:
    shards = LockedShards(epochs=1)
    trained(cluster, tmp_path, "async", shards)
    run = trained(cluster, tmp_path, "async", LockedShards(epochs=1))
    assert run.named("adopted") and run.control_plane.prepared[0].position is None


@pytest.mark.long
def test_what_was_brought_back_and_not_reported_is_told_by_the_next_chief(
    cluster: LocalCluster, tmp_path: Any, monkeypatch: Any
) -> None:
    """The first is lost between the end of the preparation and its report."""
    trained(cluster, tmp_path, "async", LockedShards(epochs=1))
    cluster.forget(0)
    cluster.forget(1)

    class Lost(Exception):
        pass

    def lose(*_: Any) -> None:
        raise Lost

    with monkeypatch.context() as patch, pytest.raises(Lost):
        patch.setattr(Pushing, "report_prepared", lose)
        trained(cluster, tmp_path, "async", LockedShards(epochs=2))
    run = trained(cluster, tmp_path, "async", LockedShards(epochs=2))
    assert run.named("adopted") and run.control_plane.prepared[0].position == Position(2, (), SHARDING)
    np.testing.assert_array_equal(counts(run), np.full(EXAMPLES, 2.0))


def test_a_refused_push_is_read_again(cluster: LocalCluster, tmp_path: Any, monkeypatch: Any) -> None:
    """A result says that a ps found the push stale; here it was applied all the same, so it counts twice."""
    refused: list[int] = []
    read = async_loop._read

    def stale_at_times(fetched: dict[str, Any], examples: int, times: Any) -> Any:
        if len(refused) < 2:
            refused.append(examples)
            fetched = {**fetched, "outcomes": [np.array([[STALE, 0]])]}
        return read(fetched, examples, times)

    monkeypatch.setattr(async_loop, "_read", stale_at_times)
    run = trained(cluster, tmp_path, "async", LockedShards(epochs=1))
    found = counts(run)
    assert found.min() == 1.0 and found.sum() == EXAMPLES + sum(refused)


@pytest.mark.parametrize("mode", long_but(["sync"], ["async", "sync"]))
def test_a_worker_without_a_shard_waits_and_goes_on_when_there_is_one(
    cluster: LocalCluster, tmp_path: Any, mode: str
) -> None:
    """Another worker holds the first shard, and is lost once this one has waited."""
    shards = LockedShards(epochs=1)
    shards.agree(SHARDING)
    base: Any = InRounds if mode == "sync" else Pushing

    class Waiting(base):  # type: ignore[misc]
        def report_prepared(self, assignment: Assignment, prepared: Prepared) -> None:
            super().report_prepared(assignment, prepared)
            assert shards.take(99, 0).shard

        def waits_for_shard(self, reason: str, no_step_under_way: bool = False) -> None:
            assert no_step_under_way or not reason
            super().waits_for_shard(reason, no_step_under_way)
            shards.lose(99, "it is gone")

        def next_action(self, assignment: Assignment, done: Any, starved: Starved | None = None) -> Action | None:
            action: Action | None = super().next_action(assignment, done, starved)
            if starved and action and action.kind is ActionKind.WAIT:
                shards.lose(99, "it is gone")
            return action

    run = trained(cluster, tmp_path, mode, shards, make=Waiting)
    np.testing.assert_array_equal(counts(run), np.full(EXAMPLES, 1.0))
    assert shards.status and shards.status.again == 1
    said = run.control_plane.starved if mode == "sync" else run.control_plane.waited
    assert said[0] == "others hold the rest of epoch 1"
    if mode == "async":
        assert "" in said
