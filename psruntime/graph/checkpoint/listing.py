"""Which checkpoints a folder has, and which of them are new to a process.

Beside one of them, NAME, may be a delta, NAME.delta-STEP: a checkpoint of a later step without the rows of tables that
were not touched since NAME.  It needs NAME alone, and no other delta.  It is complete if it has an index, and is in no
list: a reader of whole checkpoints, as stock TensorFlow is, finds the others.

The folder may be on any file system that TensorFlow reaches (`gs://...`).
"""

from __future__ import annotations

import os
import re

import tensorflow.compat.v1 as tf1

from psruntime.config.values import whole_path
from psruntime.errors import CheckpointError, DamagedCheckpointError, UsageError
from psruntime.faults import first_line
from psruntime.graph.base.checkpoint_reader import is_pattern
from psruntime.graph.base.types import Proto

DELTA = ".delta-"  # after the name of a whole checkpoint
_DELTA_OF_FILE = re.compile(rf".+{re.escape(DELTA)}(again-)?\d+(?=\.)")


class CheckpointList:
    """The list of the folder `path`.  A checkpoint is the prefix of its files, an absolute path."""

    def __init__(self, path: str) -> None:
        self.path = whole_path(path)

    def newest(self) -> str | None:
        """The newest checkpoint, which may be gone; None in a folder without any.

        Raises:
            CheckpointError: the list cannot be read.
        """
        state = self._state()
        return self._found(state.model_checkpoint_path) if state and state.model_checkpoint_path else None

    def require_newest(self) -> str:
        """As `newest`.

        Raises:
            UsageError: there is none.
        """
        newest = self.newest()
        if newest is None:
            raise UsageError(f"{self.path} has no checkpoint")
        return newest

    def not_in(self, path: str) -> str:
        """For people: that a newer delta of the checkpoint has later updates; empty if there is none."""
        delta = self.delta_of(path)
        return f"this is {path}; the rows of the newer {delta} are not in it" if delta else ""

    def delta_of(self, path: str) -> str | None:
        """The newest delta of a checkpoint; None if there is none.  Otherwise as `deltas_of`."""
        return next(iter(self.deltas_of(path)), None)

    def deltas_of(self, path: str) -> list[str]:
        """The complete deltas of a checkpoint, that of the highest step first.

        As a rule there is one.  There are more after a process was killed between writing one and removing the others.

        Raises:
            CheckpointError: the folder cannot be read.
        """
        return self._deltas(path, complete=True)

    def cut_off_deltas_of(self, path: str) -> list[str]:
        """The deltas of a checkpoint that have no index, and files: they are damaged, or were never complete.
        Otherwise as `deltas_of`."""
        return self._deltas(path, complete=False)

    def _deltas(self, path: str, complete: bool) -> list[str]:
        folder = os.path.dirname(path)
        try:
            names = tf1.gfile.ListDirectory(folder)
        except tf1.errors.NotFoundError:
            return []
        except tf1.errors.OpError as error:
            raise CheckpointError(f"the folder of checkpoint {path} cannot be read: {first_line(error)}") from error
        prefixes = {name.removesuffix(".index") for name in names if name.endswith(".index")}
        if not complete:
            prefixes = {found[0] for name in names if (found := _DELTA_OF_FILE.match(name))} - prefixes
        deltas = [each for name in prefixes if whole_of(each := os.path.join(folder, name)) == path]
        return sorted(deltas, key=lambda each: (step_of(each) or 0, written_ns(each)), reverse=True)

    def require(self, path: str) -> None:
        """Raises DamagedCheckpointError if the files of a listed checkpoint are gone."""
        if not _is_there(path):
            raise DamagedCheckpointError(
                f"checkpoint {path} is missing but listed in {self.path}/checkpoint; "
                "bring its files back, or give another checkpoint_dir"
            )

    def listed(self) -> list[str]:
        """The checkpoints that the list names and that lie in this folder, the newest last.

        Raises:
            CheckpointError: the list cannot be read.
        """
        state = self._state()
        named = [*state.all_model_checkpoint_paths, state.model_checkpoint_path] if state else []
        paths = dict.fromkeys(self._found(path) for path in named if path)
        return [path for path in paths if os.path.dirname(path) == self.path]

    def _state(self) -> Proto:
        """The list, its paths joined to the folder's; None where there is none."""
        try:
            state = tf1.train.get_checkpoint_state(self.path)  # None as well if it cannot be read
        except ValueError:  # it is empty, or names no checkpoint
            state = None
        if state is None:
            self._require_none()
        return state

    def _require_none(self) -> None:
        """Raises CheckpointError if there is a list after all, or the folder cannot be reached."""
        try:
            if not tf1.gfile.Exists(f"{self.path}/checkpoint"):
                return
        except tf1.errors.OpError as error:
            raise CheckpointError(
                f"the list of checkpoints {self.path}/checkpoint cannot be read: {first_line(error)}; give a "
                "checkpoint_dir that this machine reaches, of a mount for example"
            ) from error
        raise CheckpointError(
            f"the list of checkpoints {self.path}/checkpoint cannot be read; write the line "
            'model_checkpoint_path: "NAME" into it, or give another checkpoint_dir'
        )

    def _found(self, path: str) -> str:
        """Where a listed checkpoint is: stock TensorFlow lists absolute paths, and the folder may have been moved."""
        path = whole_path(path)
        moved = os.path.join(self.path, os.path.basename(path))
        return moved if _is_there(moved) and not _is_there(path) else path


def delta_names(whole: str, global_step: int) -> tuple[str, str]:
    """(the name of a delta of the checkpoint `whole`, that while there is one of the first name)."""
    return f"{whole}{DELTA}{global_step}", f"{whole}{DELTA}again-{global_step}"


def whole_of(path: str) -> str | None:
    """The checkpoint that a delta belongs to; None if it is none."""
    found = re.fullmatch(rf"(.+){re.escape(DELTA)}(again-)?\d+", path)
    return found[1] if found else None


def step_of(path: str) -> int | None:
    """The number at the end of a checkpoint's name."""
    number = re.search(r"-(\d+)$", path)
    return int(number[1]) if number else None


def newest_step(folder: str, whole: bool = False) -> int | None:
    """Global step of the newest checkpoint of a folder, by its name; None without a folder, if there is none there, or
    if its name has none.

    whole: of the newest that is no delta.
    """
    if not folder:
        return None
    try:
        checkpoints = CheckpointList(folder)
        path = checkpoints.newest()
        delta = checkpoints.delta_of(path) if path and not whole else None
    except CheckpointError:
        return None
    return step_of(delta or path) if path else None


def is_remote(path: str) -> bool:
    """Whether it is on a file system that only TensorFlow reaches."""
    return "://" in path


def written_ns(path: str) -> int:
    """When a checkpoint was written, in ns since the epoch; 0 if it is gone.

    TensorFlow's own Stat has whole seconds alone.
    """
    index = f"{path}.index"
    try:
        return int(tf1.gfile.Stat(index).mtime_nsec) if is_remote(path) else os.stat(index).st_mtime_ns
    except (tf1.errors.OpError, OSError):
        return 0


def _is_there(path: str) -> bool:
    """Whether the prefix has an index, or, of the oldest format, is the file itself or a pattern of files."""
    return bool(
        tf1.gfile.Exists(f"{path}.index") or tf1.gfile.Exists(path) or (not is_pattern(path) and tf1.gfile.Glob(path))
    )


Written = tuple[int | None, int]  # step and time: a step may be saved again, and a file renamed


class NewCheckpoints:
    """The checkpoints of the folder `path`, one after the other, as they are listed.

    Those that were there before the first look are old, but for the newest of them.
    """

    def __init__(self, path: str) -> None:
        self._list = CheckpointList(path)
        self._seen: set[Written] | None = None

    def next(self) -> str | None:
        """The oldest new one, which is new no more; None if there is none.

        Raises:
            CheckpointError: the list cannot be read.
        """
        listed = {(step_of(path), written_ns(path)): path for path in self._list.listed()}
        if self._seen is None and listed:
            self._seen = set(list(listed)[:-1])
        seen = (self._seen or set()).intersection(listed)
        new = next((written for written in listed if written not in seen), None)
        if new is None:
            return None
        self._seen = seen | {new}
        return listed[new]

    def is_listed(self, path: str) -> bool:
        """Whether it has not been removed meanwhile.

        Raises:
            CheckpointError: the list cannot be read.
        """
        return path in self._list.listed()
