"""The last checkpoint, when it fails or another chief is at work; and when the next periodic one is due."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from psruntime.core.members.messages import Assignment
from psruntime.errors import CheckpointError, StopRequested
from psruntime.graph.checkpoint.checkpoints import Checkpoints
from tests.graph.loop.test_training_loop import next_view
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.local_cluster import INCARNATION, LocalCluster, LocalControlPlane, linear_model, train

ADAM = linear_model(OPTIMIZERS["adam"])
WRITE = Checkpoints.write


class Patient(LocalControlPlane):
    """Tries again as often as it is told to."""

    failed = 0

    def save_failed(self, cause: str) -> None:
        assert cause == "the disk is full"
        self.failed += 1

    def back_off(self, why: str) -> None:
        time.sleep(0.01)


def failing(monkeypatch: Any, times: int, meanwhile: Any = lambda: None) -> None:
    """The first writes fail once step 4 is done, after `meanwhile`."""
    left = [times]

    def write(self: Checkpoints, session: Any, state: Any) -> Any:
        if state.global_step < 4 or not left[0]:
            return WRITE(self, session, state)
        left[0] -= 1
        meanwhile()
        raise CheckpointError("the disk is full")

    monkeypatch.setattr(Checkpoints, "write", write)


def test_the_last_checkpoint_is_tried_again(tmp_path: Path, monkeypatch: Any) -> None:
    failing(monkeypatch, 20)
    run = train(LocalCluster(1), ADAM, 4, make_control_plane=Patient, checkpoint_dir=str(tmp_path))
    assert [event["reason"] for event in run.named("checkpoint_failed")] == ["the disk is full"], "a line, not twenty"
    assert isinstance(run.control_plane, Patient) and run.control_plane.failed == 20, "each is in the status"
    assert run.checkpoints.newest_step() == 4


@pytest.mark.long
def test_but_not_for_ever(tmp_path: Path, monkeypatch: Any) -> None:
    failing(monkeypatch, 1 << 30)
    with pytest.raises(CheckpointError, match="the disk is full"):
        train(LocalCluster(1), ADAM, 4, make_control_plane=Patient, checkpoint_dir=str(tmp_path), drain_timeout_s=1.0)


@pytest.mark.long
def test_what_fails_because_another_chief_is_at_work_is_no_failure(tmp_path: Path, monkeypatch: Any) -> None:
    class Changing(LocalControlPlane):
        def back_off(self, why: str) -> None:
            raise StopRequested(why)

    cluster = LocalCluster(2)
    failing(monkeypatch, 1, meanwhile=partial(cluster.fence, {0: INCARNATION + 1}))
    with pytest.raises(StopRequested, match="ps 0 does not admit incarnation"):
        train(cluster, ADAM, 4, make_control_plane=Changing, checkpoint_dir=str(tmp_path))


def test_the_first_checkpoint_neither(tmp_path: Path, monkeypatch: Any) -> None:
    """That of step 0, while the view is prepared."""

    class Changing(LocalControlPlane):
        def back_off(self, why: str) -> None:
            raise StopRequested(why)

    def write(self: Checkpoints, session: Any, state: Any) -> Any:
        cluster.fence({0: INCARNATION + 1})
        raise CheckpointError("another chief has begun one since")

    cluster = LocalCluster(2)
    monkeypatch.setattr(Checkpoints, "write", write)
    with pytest.raises(StopRequested, match="ps 0 does not admit incarnation"):
        train(cluster, ADAM, 4, make_control_plane=Changing, checkpoint_dir=str(tmp_path))


@pytest.mark.long
def test_sessions_that_come_and_go_do_not_put_the_next_one_off(tmp_path: Path) -> None:
    """A session of three steps each, a checkpoint every four."""

    class Changing(LocalControlPlane):
        def stepped(self, global_step: int) -> None:
            super().stepped(global_step)
            if self.done in (3, 6, 9):
                next_view(self)

        def await_view(self) -> Assignment:
            return Assignment(self.view, self.incarnation, self.prepare)

    run = train(LocalCluster(1), ADAM, 10, make_control_plane=Changing, checkpoint_dir=str(tmp_path), save_steps=4)
    steps = [int(event["path"].rpartition("-")[2]) for event in run.named("checkpoint")]
    assert steps == [4, 8, 10]
