"""The folder of the checkpoints: wherever a write is cut off, what is listed is whole, and the rest is cleared away."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from psruntime.errors import CheckpointError
from psruntime.graph.checkpoint import folder as folder_module
from psruntime.graph.checkpoint.folder import CheckpointFolder, Unfinished

SHARDS = 2


class Killed(BaseException):
    """The process is gone: nothing of it runs any more, its clearing up neither."""


def write(folder: CheckpointFolder, step: int, text: str, whole: str | None = None) -> str:
    """A checkpoint all of whose files contain `text`.  whole: that which it is a delta of."""
    with folder.unfinished(step, whole) as new:
        fill(new, text)
        return folder.publish_delta(new) if whole else folder.publish(new)


def fill(new: Unfinished, text: str) -> None:
    for shard in range(SHARDS):
        Path(f"{new.merged}.data-{shard:05d}-of-{SHARDS:05d}").write_text(text)
    Path(new.folder, "part-0.index").write_text("not to be published")
    Path(f"{new.merged}.index").write_text(text)


def text_of(path: str) -> str:
    """What a checkpoint contains, which is whole."""
    files = [file for file in Path(path).parent.glob(f"{Path(path).name}.*") if f"{path}.delta" not in str(file)]
    assert len(files) == SHARDS + 1, files
    texts = {file.read_text() for file in files}
    assert len(texts) == 1, f"{path} is mixed from {texts}"
    return texts.pop()


def kill_at(monkeypatch: Any, count: int) -> list[str]:
    """Ends the process at its change number `count` of the folder; returns the changes that it made."""
    changes: list[str] = []

    def counted(name: str) -> Any:
        change = getattr(os, name)

        def run(*args: Any, **kwargs: Any) -> Any:
            if len(changes) == count:
                monkeypatch.setattr(shutil, "rmtree", lambda *_args, **_kwargs: None)
                raise Killed
            changes.append(name)
            return change(*args, **kwargs)

        return run

    for name in ("replace", "remove", "link", "mkdir"):
        monkeypatch.setattr(folder_module.os, name, counted(name))
    return changes


@pytest.mark.parametrize("step", [10, 15])
def test_cut_off_anywhere(step: int, tmp_path: Path, monkeypatch: Any) -> None:
    """While the newest one is written again, and while the oldest one is dropped."""
    for count in range(100):
        folder = CheckpointFolder(str(tmp_path / str(count)), keep=2)
        folder.require_writable()
        write(folder, 5, "oldest")
        write(folder, 10, "before")
        with monkeypatch.context() as patch:
            changes = kill_at(patch, count)
            try:
                write(folder, step, "after")
                killed = False
            except Killed:
                killed = True
        newest = folder.newest()
        assert newest
        assert text_of(newest) in ("before", "after")
        with_index = {str(file.with_suffix("")) for file in Path(folder.path).glob("*.index")}
        assert with_index >= set(folder.listed()) and all(text_of(path) for path in with_index)
        assert killed or text_of(newest) == "after"
        last = write(folder, 20, "last")
        assert text_of(last) == "last"
        left = {file.name.partition(".index")[0].partition(".data")[0] for file in Path(folder.path).iterdir()}
        assert left == {"checkpoint", *(os.path.basename(path) for path in folder.listed())}
        if not killed:
            assert len(changes) >= 8 and folder.newest() == last
            return
    raise AssertionError("it never ended")


def test_the_same_step_again_has_the_same_name(tmp_path: Path) -> None:
    folder = CheckpointFolder(str(tmp_path), keep=3)
    for text in ("one", "two", "three"):
        path = write(folder, 10, text)
        assert (os.path.basename(path), text_of(path)) == ("model.ckpt-10", text)
        assert folder.listed() == [path]


def test_without_hard_links_it_has_another(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(*_args: Any) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(folder_module.os, "link", refuse)
    folder = CheckpointFolder(str(tmp_path), keep=3)
    names = [os.path.basename(write(folder, 10, text)) for text in ("one", "two", "three")]
    assert names == ["model.ckpt-10", "model.ckpt-again-10", "model.ckpt-10"]
    assert [text_of(path) for path in folder.listed()] == ["three"]


def test_a_process_that_was_paused_does_not_list_its_own(tmp_path: Path) -> None:
    folder = CheckpointFolder(str(tmp_path), keep=3)
    write(folder, 5, "before")
    with folder.unfinished(10) as new:
        Path(f"{new.merged}.index").write_text("late")
        after = write(CheckpointFolder(str(tmp_path), keep=3), 12, "the other's")
        with pytest.raises(CheckpointError, match="checkpoint 10 was not kept: another process wrote"):
            folder.publish(new)
    assert folder.newest() == after
    assert not list(tmp_path.glob("model.ckpt-10*"))


def test_one_that_cannot_be_listed_is_removed(tmp_path: Path, monkeypatch: Any) -> None:
    folder = CheckpointFolder(str(tmp_path), keep=3)
    before = write(folder, 5, "before")
    rename = os.replace

    def refuse_list(old: str, new: str) -> None:
        if new.endswith("/checkpoint"):
            raise OSError("no space left")
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(folder_module.os, "replace", refuse_list)
        with pytest.raises(OSError, match="no space"):
            write(folder, 10, "after")
    assert folder.newest() == before
    assert not list(tmp_path.glob("model.ckpt-10*"))


def test_a_list_that_cannot_be_read_is_not_an_empty_folder(tmp_path: Path) -> None:
    folder = CheckpointFolder(str(tmp_path), keep=3)
    write(folder, 5, "before")
    (tmp_path / "checkpoint").write_text("model_checkpoint_path ???")
    for use in (folder.newest, lambda: write(folder, 10, "after")):
        with pytest.raises(CheckpointError, match=r"list of checkpoints .*/checkpoint cannot be read"):
            use()
    assert len(list(tmp_path.glob("model.ckpt-5*"))) == SHARDS + 1


def test_a_folder_that_only_tensorflow_reaches_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"folder gs://bucket/run is not in a file system of this machine; mount"):
        CheckpointFolder("gs://bucket/run", keep=2).require_writable()
    assert not list(tmp_path.iterdir())


def test_a_folder_of_stock_tensorflow_that_was_moved(tmp_path: Path) -> None:
    """Its list has absolute paths; one of another folder is not counted."""
    for name in ("stock.ckpt-3", "stock.ckpt-7"):
        for end in ("index", "data-00000-of-00002", "data-00001-of-00002"):
            (tmp_path / f"{name}.{end}").write_text(name)
    lines = ['model_checkpoint_path: "/gone/run/stock.ckpt-7"']
    lines += [f'all_model_checkpoint_paths: "/gone/run/stock.ckpt-{n}"' for n in (1, 3, 7)]
    (tmp_path / "checkpoint").write_text("\n".join(lines))
    folder = CheckpointFolder(str(tmp_path), keep=2)
    assert folder.newest() == str(tmp_path / "stock.ckpt-7")
    path = write(folder, 10, "ours")
    assert folder.listed() == [str(tmp_path / "stock.ckpt-7"), path]
    assert not list(tmp_path.glob("stock.ckpt-3*"))


@pytest.mark.parametrize("step", [7, 8])
def test_a_delta_is_cut_off_anywhere(step: int, tmp_path: Path, monkeypatch: Any) -> None:
    """While one of the same step is written again, and while it replaces one of an earlier step."""
    for count in range(100):
        folder = CheckpointFolder(str(tmp_path / str(count)), keep=2)
        folder.require_writable()
        whole = write(folder, 5, "whole")
        write(folder, 7, "before", whole)
        with monkeypatch.context() as patch:
            kill_at(patch, count)
            try:
                write(folder, step, "after", whole)
                killed = False
            except Killed:
                killed = True
        (newest, *_) = folder.deltas_of(whole)
        assert newest and text_of(newest) in ("before", "after") and text_of(whole) == "whole"
        complete = folder.deltas_of(whole)
        with folder.unfinished(9):
            names = [path.name for path in Path(folder.path).glob("*.delta-*")]
        assert len(names) == (SHARDS + 1) * len(complete), "what is cut off is removed"
        assert folder.deltas_of(whole) == complete, "and what is complete stays until there is a newer one"
        assert killed or text_of(newest) == "after"
        after = write(folder, 9, "next", whole)
        assert folder.deltas_of(whole) == [after]
        if not killed:
            return
    raise AssertionError("it was always killed")


def test_a_chief_on_another_machine_makes_the_folder(tmp_path: Path) -> None:
    """It became the chief while the job trained: it has prepared no view, and its disk is another one."""
    folder = CheckpointFolder(str(tmp_path / "runs" / "1"), keep=2)
    assert text_of(write(folder, 10, "first")) == "first"
    assert folder.listed() == [str(tmp_path / "runs" / "1" / "model.ckpt-10")]


def test_who_was_overtaken_keeps_no_delta_and_removes_none(tmp_path: Path) -> None:
    folder, other = (CheckpointFolder(str(tmp_path), keep=2) for _ in range(2))
    folder.require_writable()
    whole = write(folder, 5, "whole")
    with folder.unfinished(7, whole) as paused:
        fill(paused, "paused")
        newer = write(other, 9, "newer", whole)
        with pytest.raises(CheckpointError, match="another process wrote to"):
            folder.publish_delta(paused)
    assert folder.deltas_of(whole) == [newer] and text_of(newer) == "newer"


def test_a_delta_replaces_one_of_a_higher_step_of_an_earlier_life(tmp_path: Path) -> None:
    """Training went back to the whole checkpoint, as the delta of step 200 is damaged."""
    folder = CheckpointFolder(str(tmp_path), keep=2)
    folder.require_writable()
    whole = write(folder, 5, "whole")
    damaged = write(folder, 200, "damaged", whole)
    assert folder.deltas_of(whole) == [damaged]
    newer = write(folder, 30, "newer", whole)
    assert folder.deltas_of(whole) == [newer]
    for file in tmp_path.glob("*.delta-30.index"):
        file.unlink()
    assert not folder.deltas_of(whole) and folder.cut_off_deltas_of(whole) == [newer]


def test_with_a_checkpoint_go_its_deltas(tmp_path: Path) -> None:
    folder = CheckpointFolder(str(tmp_path), keep=1)
    folder.require_writable()
    write(folder, 7, "delta", write(folder, 5, "whole"))
    write(folder, 10, "next")
    assert {path.name.partition(".ckpt-")[2].partition(".")[0] for path in tmp_path.glob("model.*")} == {"10"}
