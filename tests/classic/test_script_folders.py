"""What a script finds in its folder when it begins: another job, and checkpoints of every kind."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.classic.arguments import USE_DEFAULT, StockArguments
from psruntime.classic.member import OwnedFolders
from psruntime.config import JobConfig
from psruntime.core.members.messages import Assignment
from psruntime.core.members.view import PsEntry, View
from psruntime.errors import CheckpointError, FolderOwnedError
from psruntime.graph.checkpoint.owner import MARK
from tests.support.local_cluster import INCARNATION, LocalCluster
from tests.support.script import Script
from tests.support.selection import long_but

STOCK = StockArguments(
    "", "", None, (), (), USE_DEFAULT, USE_DEFAULT, USE_DEFAULT, USE_DEFAULT, None, True, None, 1.0, 1.0
)
JOB = JobConfig(lease_s=0.5)


def cut_off(folder: Path, suffix: str) -> None:
    (file,) = [path for path in folder.iterdir() if suffix in path.name]
    file.write_bytes(file.read_bytes()[:-20])


def gone(folder: Path, suffix: str) -> None:
    (file,) = [path for path in folder.iterdir() if suffix in path.name]
    file.unlink()


CHECKPOINTS: dict[str, tuple[Callable[[Path], None], dict[str, Any], str]] = {
    "a variable of another shape": (
        lambda folder: None, {"size": 4},
        r"does not fit the script: w float32\[3\] there, float32\[4\] in the model; start the script that it was",
    ),
    "a variable that it lacks": (
        lambda folder: None, {"name": "other"},
        r"does not fit the script: other is missing there, float32\[3\] in the model; .* another checkpoint_dir",
    ),
    "cut off": (lambda folder: cut_off(folder, ".data-"), {}, r"cannot be restored: .*; bring its files back, or give"),
    "a cut-off index": (lambda folder: cut_off(folder, ".index"), {}, r"cannot be restored: .*; bring its files back"),
    "without its data": (lambda folder: gone(folder, ".data-"), {}, r"cannot be restored: .*; bring its files back"),
    "without its index": (lambda folder: gone(folder, ".index"), {}, r"is missing but listed in .*/checkpoint; bring"),
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job that has trained a step and saved it, and is over; tests change copies of it."""
    folder = tmp_path_factory.mktemp("saved")
    script = Script(LocalCluster(2), str(folder))
    script.prepare()
    script.step(save=True)
    script.end()
    return folder


def copied(saved: Path, folder: Path) -> Path:
    """A folder of the same checkpoint, which lists it by its own path."""
    copytree(saved, folder)
    listed = folder / "checkpoint"
    listed.write_text(listed.read_text().replace(str(saved), str(folder)))
    return folder


@pytest.mark.parametrize("kind", CHECKPOINTS)
@pytest.mark.parametrize("name", long_but(["of[1]*?"], ["plain", "of[1]*?"]))
def test_a_checkpoint_that_cannot_be_restored_is_one_line(kind: str, name: str, saved: Path, tmp_path: Path) -> None:
    change, script, complaint = CHECKPOINTS[kind]
    folder = copied(saved, tmp_path / name)
    change(folder)
    with pytest.raises(CheckpointError, match=complaint) as refused:
        Script(LocalCluster(2), str(folder), **script).prepare()
    assert str(folder) in str(refused.value) and "\n" not in str(refused.value)


def test_partitioned_variables_are_restored_by_other_partitions(tmp_path: Path) -> None:
    """And of another whole they are named."""
    partitioned = {"partitioner": tf1.fixed_size_partitioner(2)}
    script = Script(LocalCluster(2), str(tmp_path), size=4, variable=partitioned)
    script.prepare()
    script.step(save=True)
    script.end()
    later = Script(LocalCluster(2), str(tmp_path), size=4)
    assert later.prepare() == 1
    later.end()
    with pytest.raises(CheckpointError, match=r": w float32\[4\] there, float32\[6\] in the model; start"):
        Script(LocalCluster(2), str(tmp_path), size=6, variable=partitioned).prepare()


@pytest.mark.parametrize("name", ["plain", "of[1]*?"])
def test_a_folder_of_any_name_is_restored_from(name: str, saved: Path, tmp_path: Path) -> None:
    later = Script(LocalCluster(2), str(copied(saved, tmp_path / name)))
    assert later.prepare() == 1 and later.values() == [0, 0]


def test_another_model_than_that_of_the_checkpoint_is_logged(saved: Path, tmp_path: Path) -> None:
    folder = str(copied(saved, tmp_path / "again"))
    same = Script(LocalCluster(2), folder)
    same.prepare()
    same.end()
    edited = Script(LocalCluster(2), folder, rate=0.5)
    assert edited.prepare() == 1
    assert [event for event, _ in same.events] == ["restored"]
    assert [event for event, _ in edited.events] == ["model_differs", "restored"]
    reason = edited.events[0][1]["reason"]
    assert reason.startswith("optimizer ") and reason.endswith(": 0.5, where the checkpoint has 1.0"), reason


@pytest.mark.long
def test_a_live_job_keeps_its_folder(tmp_path: Path) -> None:
    first = Script(LocalCluster(2), str(tmp_path), coordinator="10.0.0.1:2222", lease_s=2.0)
    first.prepare()
    (mark,) = first.folders._owners
    second = Script(LocalCluster(2), str(tmp_path), coordinator="10.0.0.2:2222", lease_s=2.0)
    second.folders._owners[0]._log = lambda *_, **__: mark._renew(mark._ps)  # while it looks
    with pytest.raises(FolderOwnedError, match=r"belongs to job \S+ of coordinator 10.0.0.1:2222, which is running"):
        second.prepare()
    with second.session() as session, pytest.raises(tf1.errors.FailedPreconditionError):
        session.run(second.w)
    first.end()
    with pytest.raises(FolderOwnedError):
        second.folders.before_save(None, 0)
    assert Script(LocalCluster(2), str(tmp_path)).prepare() == 0


def view(port: int) -> Assignment:
    ps = (PsEntry(0, f"10.0.0.1:{port}", port),)
    return Assignment(View(1, ps), INCARNATION, prepare=True)


def test_the_mark_of_a_dead_job_is_taken_over_and_its_chief_saves_no_more(tmp_path: Path) -> None:
    """By hand: a chief that was paused, and is not asked by a ps any more."""
    saver = tf1.train.CheckpointSaverHook(str(tmp_path), save_steps=1)
    stock = replace(STOCK, hooks=(saver,))
    coordinators = ("10.0.0.1:2222", "10.0.0.9:2222")
    paused, other = (OwnedFolders(stock.folders(), JOB, address, lambda *_, **__: None) for address in coordinators)
    assert stock.chief_hooks(paused) == [saver] and saver._listeners == [paused]
    looks: list[int] = []
    paused.claim(view(1), lambda: None)
    paused.before_save(None, 0)
    other.claim(view(2), lambda: looks.append(1))
    assert looks, "it was watched"
    with pytest.raises(FolderOwnedError, match="which is running"):
        paused.before_save(None, 0)
    other.end_membership(is_over=False)
    assert json.loads((tmp_path / MARK).read_text())["ps"] == ["10.0.0.1:2"], "the job continues without this process"
    other.end_membership(is_over=True)
    assert not os.listdir(tmp_path)


def test_the_next_chief_of_a_job_takes_the_mark_at_once(tmp_path: Path) -> None:
    first, second = (OwnedFolders([str(tmp_path)], JOB, "10.0.0.1:2222", lambda *_, **__: None) for _ in range(2))
    first.claim(view(1), lambda: None)

    def never() -> None:
        raise AssertionError("it was watched")

    second.claim(view(1), never)
    first.before_save(None, 0)


def test_a_folder_that_a_script_only_restores_from_is_no_jobs() -> None:
    assert replace(STOCK, checkpoint_dir="run").folders() == ["run"]
    assert replace(STOCK, checkpoint_dir="run", save_checkpoint_steps=None, save_checkpoint_secs=None).folders() == []


def test_a_folder_that_cannot_be_marked(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"/file/c cannot be marked as this job's: Not a directory; give another"):
        Script(LocalCluster(2), str(tmp_path / "file" / "c")).prepare()
