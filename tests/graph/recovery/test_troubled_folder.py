"""A folder in trouble, which may pass, does not end a job that has trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from psruntime.core.members.view import View
from psruntime.errors import CheckpointError
from tests.graph.recovery.test_lost_work import ADAM, SEEN, Demanding, Refused, after
from tests.support import worlds
from tests.support.local_cluster import LocalCluster, LocalControlPlane, train
from tests.support.small_disk import SmallDisk, small_disk

pytestmark = pytest.mark.skipif(bool(worlds.refusal()), reason=worlds.refusal() or "possible")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def disk(folder: Path) -> Iterator[SmallDisk]:
    with small_disk(folder) as disk:
        yield disk


class MakesRoom(Demanding):
    """Frees the disk when a step is done, so that the last checkpoint can be written."""

    def __init__(self, disk: SmallDisk, view: View, steps: int) -> None:
        super().__init__(view, steps, saved_step=4, seen_step=SEEN)
        self._disk = disk

    def stepped(self, global_step: int) -> None:
        if not self.done:
            self._disk.free()
        super().stepped(global_step)


def making_room(disk: SmallDisk) -> Callable[[View, int], LocalControlPlane]:
    return partial(MakesRoom, disk)


@pytest.mark.long
@pytest.mark.parametrize("lost", [(0, 1), (1,), ()], ids=["all ps", "a ps", "no ps"])
def test_a_full_disk_keeps_no_job_from_going_on(lost: tuple[int, ...], folder: Path, disk: SmallDisk) -> None:
    """What is there can be read; a checkpoint is due when there is room."""
    cluster, settings = LocalCluster(2), {"checkpoint_dir": str(folder), "slice_bytes": 64}
    train(cluster, ADAM, 4, **settings)
    for ps in lost:
        cluster.forget(ps)
    disk.fill()
    run = train(cluster, ADAM, 2, make_control_plane=making_room(disk), **settings)
    assert run.control_plane.prepared_at == [4]
    restored = run.named("restored")
    assert [event["sharded"] for event in restored] == ["no, the folder cannot be written: No space left on device"] * (
        1 if lost else 0
    )
    assert (folder / "model.ckpt-6.index").exists()


def test_a_job_does_not_begin_on_a_full_disk(folder: Path, disk: SmallDisk) -> None:
    disk.fill()
    with pytest.raises(CheckpointError, match=r"cannot be written: No space left on device; give another"):
        train(LocalCluster(2), ADAM, 2, checkpoint_dir=str(folder))


@pytest.mark.long
def test_a_chief_that_cannot_read_says_so_and_leaves_it_to_others(folder: Path, disk: SmallDisk) -> None:
    """They may; and if nobody can, the job waits for --ps-timeout."""
    cluster, settings = LocalCluster(1), {"checkpoint_dir": str(folder)}
    train(cluster, ADAM, 4, **settings)
    for path in folder.glob("*.data-*"):
        path.write_bytes(path.read_bytes()[:100])
    cluster.forget(0)
    with pytest.raises(Refused, match=r"model\.ckpt-4 cannot be read: .*bring its files back"):
        train(cluster, ADAM, 2, make_control_plane=after(4), **settings)
    (folder / "checkpoint").write_text("?")
    with pytest.raises(Refused, match="cannot be read"):
        train(cluster, ADAM, 2, make_control_plane=after(4), **settings)
