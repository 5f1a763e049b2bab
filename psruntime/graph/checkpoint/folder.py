"""The folder of the checkpoints: how a new one becomes one of them, and whether every ps sees the folder.

The file `checkpoint` lists them (listing.py).  A new one is written into a folder of its own,
`.unfinished-NAME-TOKEN`, moved out of it when it is complete and on the disk, and listed last; so every listed one is
whole, at any moment.  The leftovers of a process that was killed are removed when the next one is started.

Where every ps sees the folder, each writes and reads its own part of a checkpoint there.  To find out the chief writes
a file of random content; each ps reads it, and then writes a copy, which the chief reads.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import tensorflow.compat.v1 as tf1

from psruntime.errors import CheckpointError
from psruntime.faults import first_line
from psruntime.graph.base.errors import LOST_SESSION
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import Op, Session, Tensor
from psruntime.graph.checkpoint.listing import DELTA, CheckpointList, delta_names, is_remote


class SharedFolder:
    """The operations for these ps, in the current graph."""

    def __init__(self, every_ps: Iterable[int]) -> None:
        self._seen: dict[int, tuple[Tensor, Tensor]] = {}  # ps -> (path, content)
        self._copied: dict[int, tuple[Tensor, Op]] = {}  # ps -> (content, writing)
        for ps in every_ps:
            with tf1.device(ps_device(ps)):
                path = tf1.placeholder(tf1.string, [], name=f"probe_{ps}")
                content = tf1.placeholder(tf1.string, [], name=f"content_{ps}")
                self._seen[ps] = (path, tf1.io.read_file(path))
                self._copied[ps] = (content, tf1.raw_ops.WriteFile(filename=path + f"-{ps}", contents=content))

    def obstacle(self, session: Session, folder: str) -> str:
        """Why the ps cannot use the folder, which the chief can; empty if all of them can."""
        probe, content = os.path.join(folder, "probe"), secrets.token_hex(16).encode()
        with open(probe, "wb") as file:
            file.write(content)
        for ps, (path, seen) in self._seen.items():
            try:
                # Read first: WriteFile makes the folders that it lacks, which a ps elsewhere must not.
                if session.run(seen, {path: probe}) != content:
                    return f"ps {ps} reads another file there"
                given, writing = self._copied[ps]
                session.run(writing, {path: probe, given: content})
            except LOST_SESSION:
                raise
            except tf1.errors.NotFoundError:
                return f"ps {ps} does not see the folder"
            except tf1.errors.OpError as error:
                return f"ps {ps}: {first_line(error)}"
            if not _holds(f"{probe}-{ps}", content):
                return f"ps {ps} writes elsewhere"
        return ""


def _holds(path: str, content: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read() == content
    except OSError:
        return False


_UNFINISHED = ".unfinished-"
_PASSING = "passing"  # in an unfinished one, once it is moved: names of checkpoints that are there only if listed


@dataclass(frozen=True)
class Unfinished:
    """A checkpoint that is being written.

    folder: for its files.  merged: the prefix there of those that are to be published.  path: where they will be.
    listed: the checkpoints that were listed when it was started.  whole: of a delta, the checkpoint that it belongs to.
    deltas: those of `whole` that were there when it was started.
    """

    folder: str
    merged: str
    path: str
    global_step: int
    listed: list[str]
    whole: str = ""
    deltas: tuple[str, ...] = ()


class CheckpointFolder:
    """The folder `path`, in which the newest `keep` checkpoints are kept.  A checkpoint is the prefix of its files."""

    def __init__(self, path: str, keep: int) -> None:
        self._checkpoints = CheckpointList(path)
        self.path = self._checkpoints.path
        self._keep = keep

    def require_writable(self) -> None:
        """Makes the folder and proves that it can be written.

        Raises:
            CheckpointError: it cannot.
        """
        if is_remote(self.path):
            raise CheckpointError(
                f"checkpoint folder {self.path} is not in a file system of this machine; mount it, or give "
                "another checkpoint_dir"
            )
        try:
            os.makedirs(self.path, exist_ok=True)
            with self.scratch("probe") as folder, open(os.path.join(folder, "probe"), "w", encoding="utf-8") as file:
                file.write("-")
        except OSError as error:
            raise CheckpointError(
                f"checkpoint folder {self.path} cannot be written: {error.strerror}; give another checkpoint_dir"
            ) from error

    def newest(self) -> str | None:
        """As CheckpointList."""
        return self._checkpoints.newest()

    def require(self, path: str) -> None:
        """As CheckpointList."""
        self._checkpoints.require(path)

    def listed(self) -> list[str]:
        """As CheckpointList."""
        return self._checkpoints.listed()

    def deltas_of(self, path: str) -> list[str]:
        """As CheckpointList."""
        return self._checkpoints.deltas_of(path)

    def cut_off_deltas_of(self, path: str) -> list[str]:
        """As CheckpointList."""
        return self._checkpoints.cut_off_deltas_of(path)

    @contextlib.contextmanager
    def scratch(self, name: str) -> Iterator[str]:
        """A new folder within, while open."""
        path = os.path.join(self.path, f"{_UNFINISHED}{name}-{secrets.token_hex(4)}")
        os.mkdir(path)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def unfinished(self, global_step: int, whole: str | None = None) -> Iterator[Unfinished]:
        """A folder to write a new checkpoint to, while open; files in it that were not published are removed then.

        Its name is never that of a listed one: one of the same step stays as it is until this one is listed.
        whole: the checkpoint that it is a delta of.
        """
        os.makedirs(self.path, exist_ok=True)  # a worker that became the chief in training may have a disk of its own
        for left_behind in glob.glob(os.path.join(glob.escape(self.path), f"{_UNFINISHED}*")):
            self._clear(left_behind)
        listed = self.listed()
        for newest in listed[-1:]:  # to others no delta is written
            self._remove_deltas(newest, self.deltas_of(newest))
        usual, other = (os.path.join(self.path, name) for name in names_of(global_step))
        path = other if usual in listed else usual
        deltas = self.deltas_of(whole) if whole else []
        if whole:
            usual, other = delta_names(whole, global_step)
            path = other if usual in deltas else usual
        name = os.path.basename(path)
        with self.scratch(name) as folder:
            try:
                merged = os.path.join(folder, name)
                yield Unfinished(folder, merged, path, global_step, listed, whole or "", tuple(deltas))
            finally:
                self._clear(folder)

    def publish_delta(self, new: Unfinished) -> str:
        """Moves the files of a delta beside those of its checkpoint, and removes the deltas that were there.

        Also those of a higher step: they are damaged, and the training went back to an older state.

        Raises:
            CheckpointError: another process has written a checkpoint or a delta meanwhile, or has removed this one as
                left behind.
        """
        self._require_alone(new)
        files = _files(new.merged)
        if not files or not files[-1].endswith(".index"):
            raise CheckpointError(
                f"checkpoint {new.global_step} was not kept: another process removed it from {self.path} meanwhile"
            )
        for file in files:
            _to_disk(file)
            if file is files[-1]:
                _to_disk(self.path)  # the files that the index names are there before it
            os.replace(file, os.path.join(self.path, os.path.basename(file)))
        _to_disk(self.path)
        self._remove_deltas(new.whole, [new.path])
        return new.path

    def _remove_deltas(self, whole: str, kept: Sequence[str]) -> None:
        """Removes the deltas of a checkpoint but for those that are kept, and leftovers of others."""
        prefix = f"{whole}{DELTA}"
        files = glob.glob(f"{glob.escape(prefix)}*")
        for file in sorted(files, key=lambda name: not name.endswith(".index")):
            is_delta = re.match(r"(?:again-)?\d+", file[len(prefix) :])
            if is_delta and not file.startswith(tuple(f"{path}." for path in kept)):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(file)

    def publish(self, new: Unfinished) -> str:
        """Makes the files with the prefix `new.merged` the newest checkpoint, and removes the oldest ones.

        Raises:
            CheckpointError: another process listed one meanwhile, so this one stood still and is behind.
        """
        self._require_alone(new)
        others = [path for path in new.listed if os.path.basename(path) not in names_of(new.global_step)]
        kept = [*others, new.path][-self._keep :]
        with open(os.path.join(new.folder, _PASSING), "w", encoding="utf-8") as passing:
            json.dump([*(os.path.basename(path) for path in new.listed), *names_of(new.global_step)], passing)
        _remove(new.path)
        for file in _files(new.merged):
            _to_disk(file)
            os.replace(file, os.path.join(self.path, os.path.basename(file)))
        _to_disk(self.path)
        self._list(kept, new.folder)
        for path in new.listed:
            if path not in kept:
                _remove(path)
        usual = os.path.join(self.path, names_of(new.global_step)[0])
        return new.path if new.path == usual else self._rename(new.path, usual, kept, new.folder)

    def _require_alone(self, new: Unfinished) -> None:
        if self.listed() != new.listed or (new.whole and self.deltas_of(new.whole) != [*new.deltas]):
            raise CheckpointError(
                f"checkpoint {new.global_step} was not kept: another process wrote to {self.path} meanwhile"
            )

    def _rename(self, path: str, usual: str, listed: list[str], folder: str) -> str:
        """Renames the newest checkpoint to its usual name, which is listed no more; returns the name that it has."""
        try:
            for file in _files(path):
                os.link(file, usual + file.removeprefix(path))
        except OSError:  # no hard links there: it keeps its name
            _remove(usual)
            return path
        self._list([*listed[:-1], usual], folder)
        _remove(path)
        return usual

    def _list(self, paths: list[str], folder: str) -> None:
        """Writes the list, in `folder` first."""
        names = [json.dumps(os.path.basename(path)) for path in paths]
        lines = [f"model_checkpoint_path: {names[-1]}", *(f"all_model_checkpoint_paths: {name}" for name in names)]
        unfinished = os.path.join(folder, "checkpoint")
        with open(unfinished, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        _to_disk(unfinished)
        os.replace(unfinished, os.path.join(self.path, "checkpoint"))
        _to_disk(self.path)

    def _clear(self, folder: str) -> None:
        """Removes the leftovers of a write: its folder, and files that it moved and did not list, or did not remove."""
        listed = self.listed()
        with contextlib.suppress(OSError, ValueError), open(os.path.join(folder, _PASSING), encoding="utf-8") as file:
            for path in (os.path.join(self.path, name) for name in json.load(file)):
                if path not in listed:
                    _remove(path)
        shutil.rmtree(folder, ignore_errors=True)


def names_of(global_step: int) -> tuple[str, str]:
    """(the name of a checkpoint of this step, that while one of the first name is listed)."""
    return f"model.ckpt-{global_step}", f"model.ckpt-again-{global_step}"


def _files(path: str) -> list[str]:
    """The files of a checkpoint, the index last: where it is moved in this order, it is whole if there is an index."""
    files = [name for name in glob.glob(glob.escape(path) + ".*") if not name.startswith(path + DELTA)]
    return sorted(files, key=lambda name: name.endswith(".index"))


def _to_disk(path: str) -> None:
    """Syncs a file or folder, so that a listed checkpoint is there after a crash of the machine, too."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    """Removes the files of a checkpoint, those of its deltas first."""
    deltas = sorted(glob.glob(glob.escape(path + DELTA) + "*"), key=lambda name: not name.endswith(".index"))
    for file in [*deltas, *reversed(_files(path))]:
        with contextlib.suppress(FileNotFoundError):
            os.remove(file)
