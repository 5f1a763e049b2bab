"""Checkpoints: logical variables under the model's own names, so that any plan reads what any plan wrote.

Stock TensorFlow reads them, and theirs are read here (entries.py, core/recovery/checkpoint_names.py).  Where
every ps sees the folder, each writes and reads the part that it holds; else the chief does, for all.

A checkpoint is of one moment: everything is copied on the ps (snapshot.py), and written from the copies while the
training goes on.  Beside it are the counters of that moment (core/accounting/saved_state.py).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.saved_state import SUFFIX, SavedState
from psruntime.core.recovery.checkpoint_names import Kind, find_sources
from psruntime.errors import CheckpointError, DamagedCheckpointError
from psruntime.graph.base.devices import ps_device
from psruntime.graph.base.errors import LOST_SESSION, first_line
from psruntime.graph.checkpoint.entries import parts_of, step_part, to_read, to_write
from psruntime.graph.checkpoint.folder import CheckpointFolder
from psruntime.graph.checkpoint.listing import newest_step, step_of
from psruntime.graph.checkpoint.shared_folder import SharedFolder
from psruntime.graph.checkpoint.snapshot import Snapshot
from psruntime.graph.checkpoint.transfer import Reader, Writer
from psruntime.graph.step.train_graph import TrainGraph
from psruntime.graph.store.bucket_store import GLOBAL_STEP

# How files that are cut off or gone fail; a disk that is full or away fails otherwise.
DAMAGE = (tf1.errors.DataLossError, tf1.errors.OutOfRangeError, tf1.errors.NotFoundError, FileNotFoundError, ValueError)


@dataclass(frozen=True)
class Transferred:
    """A checkpoint that was written or read.  unshared: why the chief did it for all ps; empty if each did its own."""

    path: str
    unshared: str

    @property
    def sharded(self) -> str:
        """For the log."""
        return f"no, {self.unshared}" if self.unshared else "yes"


class Checkpoints:
    """Writes, finds and restores the checkpoints of one folder.  Without a folder it has none and writes none."""

    def __init__(self, graph: TrainGraph, folder: str, keep: int, index: int) -> None:
        self._folder = CheckpointFolder(folder, keep) if folder else None
        self._damaged: set[tuple[str, float]] = set()  # checkpoints that were passed over, and when each was written
        master = graph.global_step.master
        with graph.graph.as_default(), tf1.name_scope("checkpoint"):
            parts = parts_of(graph)
            entries = {part.entry.name: part.entry for part in parts}
            self._entries = sorted(
                entries.values(), key=lambda e: e.kind is Kind.SHARED
            )  # who misses one, misses slots
            self._snapshot = Snapshot(graph)
            self._writer = Writer([step_part(graph), *to_write(parts)], index, self._snapshot.read)
            self._fence = graph.fence
            self._reader = Reader(to_read(parts), index, graph.fence)
            self._shared = SharedFolder(sorted({GLOBAL_STEP.ps, *(part.ps for part in parts)}))
            with tf1.device(ps_device(GLOBAL_STEP.ps)):
                self._restored_step = tf1.placeholder(tf1.int64, [1], name="restored_step")
                self._set_step = master.assign(self._restored_step, read_value=False)
            graph.fence.guard(GLOBAL_STEP.ps, [self._set_step])

    def check_folder(self) -> None:
        """Makes the folder and proves that it can be written.

        Raises:
            CheckpointError: it cannot.
        """
        if self._folder:
            self._folder.require_writable()

    @property
    def folder(self) -> str:
        """Its path; empty without one."""
        return self._folder.path if self._folder else ""

    def latest(self) -> str | None:
        """The newest checkpoint of the folder that was not passed over, as the prefix of its files, which may be gone;
        None in an empty folder.

        Raises:
            CheckpointError: the folder's list cannot be read.
        """
        newest = self._folder.newest() if self._folder else None
        if self._folder and newest and written(newest) in self._damaged:
            return next(path for path in reversed(self._folder.listed()) if written(path) not in self._damaged)
        return newest

    def pass_over(self, path: str) -> str | None:
        """Goes on without a damaged checkpoint; returns the next older one, or None: it is the last, and stays."""
        assert self._folder is not None
        older = [each for each in self._folder.listed() if written(each) not in self._damaged and each != path]
        if older:
            self._damaged.add(written(path))
        return older[-1] if older else None

    def newest_step(self) -> int | None:
        """Global step of the newest checkpoint, by its name; None if there is none, or none that can be told."""
        return newest_step(self._folder.path) if self._folder else None

    def copy(self, session: Any) -> SavedState | None:
        """Copies everything on the ps, to be written by `write`; None without a folder.

        Raises:
            CheckpointError: it could not be copied, or in mode sync it would not be the parameters of one round.
        """
        if not self._folder:
            return None
        with _failing("the checkpoint was not begun"):
            return self._snapshot.take(session)

    def write(self, session: Any, state: SavedState) -> Transferred:
        """Writes what was copied last.  May be called in another thread than `copy`, one call at a time.

        Raises:
            CheckpointError: it could not be written, or another process made a copy or wrote a checkpoint since.
                The ones before it are untouched.
        """
        assert self._folder is not None
        failure = f"checkpoint {state.global_step} was not written to {self._folder.path}"
        try:
            with _failing(failure), self._folder.unfinished(state.global_step) as new:
                unshared = self._shared.obstacle(session, new.folder)
                self._writer.write(session, new.folder, new.merged, not unshared)
                Path(new.merged + SUFFIX).write_text(state.text(), encoding="utf-8")
                if not self._snapshot.is_ours(session):
                    raise CheckpointError(f"{failure}: another chief has begun one since")
                return Transferred(self._folder.publish(new), unshared)
        finally:
            with suppress(tf1.errors.OpError, RuntimeError):  # RuntimeError: the session was closed
                self._snapshot.release(session)

    def save(self, session: Any) -> Transferred | None:
        """`copy`, then `write`."""
        state = self.copy(session)
        return None if state is None else self.write(session, state)

    def state(self, path: str) -> SavedState:
        """The counters of the checkpoint `path`; one of stock TensorFlow has only a global step, the number at
        the end of its name, or 0.

        Raises:
            CheckpointError: they cannot be read.
        """
        assert self._folder is not None
        self._folder.require(path)
        with _reading(path):
            file = Path(path + SUFFIX)
            if file.exists():
                return SavedState.of_text(file.read_text(encoding="utf-8"))
            reader = tf1.train.load_checkpoint(path)
            if GLOBAL_STEP.name in reader.get_variable_to_shape_map():
                return SavedState(int(reader.get_tensor(GLOBAL_STEP.name)))
        return SavedState(step_of(path) or 0)

    def restore(
        self, session: Any, path: str, global_step: int, every_ps: Collection[int], incarnation: int
    ) -> Transferred:
        """Restores masters and optimizer variables of these ps from `path`, and on ps 0 the global step, as long as
        they admit this incarnation.

        It may be one of stock TensorFlow.

        Raises:
            CheckpointError: it cannot be read, or lacks a variable or has it in another shape or dtype;
                names them.
            ReplacedError: a ps no longer admits the incarnation.
        """
        assert self._folder is not None
        with _reading(path):
            sources = self._sources(path)
            unshared = self._unshared(session)
            self._reader.read(session, path, sources, not unshared, every_ps, incarnation)
            if GLOBAL_STEP.ps in every_ps:
                self._fence.run(session, incarnation, self._set_step, {self._restored_step: [global_step]})
        return Transferred(path, unshared)

    def _unshared(self, session: Any) -> str:
        """Why the ps cannot read the folder themselves; empty if they can."""
        assert self._folder is not None
        try:
            with self._folder.scratch("probe") as scratch:
                return self._shared.obstacle(session, scratch)
        except OSError as error:  # of the chief's own; what there is can be read nevertheless
            return f"the folder cannot be written: {error.strerror}"

    def _sources(self, path: str) -> Mapping[str, str]:
        """Name there of each entry."""
        reader = tf1.train.load_checkpoint(path)
        dtypes = reader.get_variable_to_dtype_map()
        there = {name: (tuple(s), dtypes[name].name) for name, s in reader.get_variable_to_shape_map().items()}
        sources, misfits = find_sources(self._entries, there)
        if misfits:
            more = f" and {len(misfits) - 3} more" if len(misfits) > 3 else ""
            raise CheckpointError(
                f"checkpoint {path} does not fit the model: {'; '.join(misfits[:3])}{more}; "
                "give the model that it was written with, or another --checkpoint-dir"
            )
        return sources


def written(path: str) -> tuple[str, float]:
    """Tells a checkpoint from an earlier one of its name."""
    try:
        return path, os.stat(f"{path}.index").st_mtime
    except OSError:
        return path, 0.0


@contextmanager
def _failing(what: str, advice: str = "", kind: type[CheckpointError] = CheckpointError) -> Iterator[None]:
    """What goes wrong inside is an error of this kind, but for a session that is lost."""
    try:
        yield
    except LOST_SESSION:
        raise
    except (tf1.errors.OpError, OSError, ValueError, RuntimeError) as error:  # RuntimeError: a closed session
        kind = kind if isinstance(error, DAMAGE) else CheckpointError
        raise kind(f"{what}: {first_line(error)}{advice}") from error


def _reading(path: str) -> AbstractContextManager[None]:
    advice = "; bring its files back, or give another --checkpoint-dir"
    return _failing(f"checkpoint {path} cannot be read", advice, DamagedCheckpointError)
