"""Checkpoints: logical variables under the model's own names, so that any plan reads what any plan wrote.

Stock TensorFlow reads them, and its own are read here (entries.py, core/recovery/checkpoint_names.py).  Where every
ps sees the folder, each writes and reads its own variables; else the chief does, for all.

A checkpoint is of one moment: everything is copied on the ps (snapshot.py), and written from the copies while the
training continues.  Beside it are the counters of that moment (core/accounting/saved_state.py).

A delta is a checkpoint without the rows of tables that were not touched since a whole one, which lies beside it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.saved_state import ROWS_SUFFIX, SUFFIX, RowChanges, SavedState
from psruntime.core.plan.identity import PROTOCOL, differences, in_a_line, remarks
from psruntime.core.recovery.checkpoint_names import Entry, EntryKind, Found, find_sources
from psruntime.core.shards.shard_messages import Position
from psruntime.errors import CheckpointError, DamagedCheckpointError, FolderOwnedError, PassedRoundError, some
from psruntime.faults import FATES, Place, first_line, kind_of, of_system
from psruntime.graph.base.checkpoint_reader import contents_of, is_pattern, readable
from psruntime.graph.base.errors import LOST_SESSION, is_closed
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import Session
from psruntime.graph.buckets.bucket_store import GLOBAL_STEP
from psruntime.graph.checkpoint.entries import CheckpointPart, parts_of, step_part, to_read, to_write
from psruntime.graph.checkpoint.folder import CheckpointFolder, SharedFolder, Unfinished
from psruntime.graph.checkpoint.listing import newest_step, step_of, whole_of, written_ns
from psruntime.graph.checkpoint.owner import FolderOwner
from psruntime.graph.checkpoint.row_transfer import NUMBERS, RowReader, RowWriter
from psruntime.graph.checkpoint.snapshot import Snapshot
from psruntime.graph.checkpoint.table_parts import table_parts
from psruntime.graph.checkpoint.transfer import Reader, Source, Writer
from psruntime.graph.step.train_graph import TrainGraph

COPIES = 10  # that are made at most, until one is of one round
ROOM_BYTES = 64 << 20  # of tables: for so many there is room for a copy on every ps
# Errors of a file that is cut off, gone or may not be read.  A disk that is full or away fails otherwise.
DAMAGE = (
    tf1.errors.DataLossError, tf1.errors.OutOfRangeError, tf1.errors.NotFoundError, tf1.errors.PermissionDeniedError,
    FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ValueError, IndexError,
)  # fmt: skip


@dataclass(frozen=True)
class Copied:
    """The copy on the ps.  form: how it is written.

    changes: of a delta, its rows.  whole: the checkpoint that it is a delta of.  seconds: that the copy took.
    """

    form: _Form
    state: SavedState
    changes: RowChanges | None = None
    whole: str | None = None
    seconds: float = 0.0

    @property
    def global_step(self) -> int:
        return self.state.global_step


@dataclass(frozen=True)
class Transferred:
    """A checkpoint that was written or read.  unshared: why the chief did it for all ps; empty if each did its own.
    seconds: that it took.
    """

    path: str
    unshared: str
    seconds: float = 0.0

    @property
    def sharded(self) -> str:
        """For the log."""
        return f"no, {self.unshared}" if self.unshared else "yes"


class _Form:
    """The variables that are copied for a checkpoint, and how they are written."""

    def __init__(self, graph: TrainGraph, parts: list[CheckpointPart], index: int, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._rows = RowWriter(snapshot.touched, index) if snapshot.touched else None
        self._writer = Writer([step_part(graph), *to_write(parts)], index, snapshot.read)

    def write(self, session: Session, new: Unfinished, sharded: bool, changes: RowChanges | None) -> None:
        """Writes the files of a checkpoint, but for its counters."""
        rows: list[str] = []
        if self._rows and changes:
            rows = self._rows.write(session, new.folder, changes.parts, sharded)
            Path(new.merged + ROWS_SUFFIX).write_text(changes.text(), encoding="utf-8")
        self._writer.write(session, new.folder, new.merged, sharded, rows)


class Checkpoints:
    """Writes, finds and restores the checkpoints of one folder.  Without a folder it has none and writes none.

    owner: the job's mark in the folder; None: a folder that has none.
    """

    def __init__(self, graph: TrainGraph, folder: str, keep: int, index: int, owner: FolderOwner | None = None) -> None:
        self.owner = owner
        self._folder = CheckpointFolder(folder, keep) if folder else None
        self._damaged: set[tuple[str, float]] = set()  # checkpoints that were skipped, and when each was written
        self._identity = graph.identity
        master = graph.global_step.master
        with graph.graph.as_default(), tf1.name_scope("checkpoint"):
            parts = parts_of(graph)
            entries = {part.entry.name: part.entry for part in parts}
            self._entries = sorted(
                entries.values(), key=lambda e: e.kind is EntryKind.SHARED
            )  # where it is missing, so are slots
            tables = table_parts(graph)
            forms = [_Form(graph, parts, index, Snapshot(graph, tables))]
            self._whole = self._when_paused = forms[0]
            if sum(table.rows * table.row_bytes for table in tables) > ROOM_BYTES:
                self._when_paused = _Form(graph, parts, index, Snapshot(graph, tables, in_place=True))
                forms.append(self._when_paused)
            self._touched: _Form | None = None
            if any(table.flags for table in tables):
                changing = {
                    id(v) for table in tables if not table.flags and table.is_trained for v in table.kept.values()
                }
                not_by_rows = [part for part in parts if not part.of_table or id(part.variable) in changing]
                self._touched = _Form(graph, not_by_rows, index, Snapshot(graph, tables, only_touched=True))
                forms.append(self._touched)
            self._snapshots = [form.snapshot for form in forms]
            self._of_tables = {part.entry.name for part in parts if part.of_table}
            self._row_reader = RowReader(tables, index, graph.fence)
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
    def has_deltas(self) -> bool:
        """Whether there is a table of which the touched rows can be saved by themselves."""
        return self._touched is not None

    @property
    def folder(self) -> str:
        """Its path; empty without one."""
        return self._folder.path if self._folder else ""

    def latest(self) -> str | None:
        """The newest checkpoint of the folder that was not skipped, also a delta, as the prefix of its files, which
        may be gone; None in an empty folder.

        Raises:
            CheckpointError: the folder's list cannot be read.
        """
        return next((path for path in self._newest_first() if written(path) not in self._damaged), None)

    def _newest_first(self) -> Iterator[str]:
        newest = self._folder.newest() if self._folder else None
        if self._folder is None or newest is None:
            return
        for whole in dict.fromkeys([newest, *reversed(self._folder.listed())]):
            yield from [*self._folder.deltas_of(whole), whole]

    def skip(self, path: str) -> str | None:
        """Skips a damaged checkpoint from now on; returns the next older one, or None: it is the last, and stays."""
        older = (each for each in self._newest_first() if written(each) not in self._damaged and each != path)
        if first := next(older, None):
            self._damaged.add(written(path))
        return first

    def cut_off(self) -> list[str]:
        """The deltas of the newest checkpoint that have lost their index, or never had one; the newest first.

        Raises:
            CheckpointError: the folder cannot be read.
        """
        newest = self._folder.newest() if self._folder else None
        return self._folder.cut_off_deltas_of(newest) if self._folder and newest else []

    def newest_step(self, whole: bool = False) -> int | None:
        """Global step of the newest checkpoint, by its name; None if there is none, or its name has none.

        whole: of the newest that is no delta.
        """
        return newest_step(self._folder.path, whole) if self._folder else None

    def copy(
        self, session: Session, only_touched: bool = False, is_paused: bool = False, position: Position | None = None
    ) -> Copied | None:
        """Copies everything on the ps, to be written by `write`; None without a folder.

        only_touched: of tables the touched rows alone, if the newest checkpoint has all others; if not, everything.
        is_paused: whether no update runs until it is written, so large tables need not be copied.
        position: how far the data shards were read before this, to be saved with it.

        Raises:
            CheckpointError: it could not be copied, or in mode sync it would not be the parameters of one round.
        """
        if not self._folder:
            return None
        with failing("the checkpoint was not begun"):
            if only_touched and (delta := self._copy_touched(session)):
                return replace(delta, state=replace(delta.state, position=position, identity=self._identity))
            began_s = time.monotonic()
            form = self._when_paused if is_paused else self._whole
            state, _ = _of_one_round(form.snapshot, session)
            state = replace(state, position=position, identity=self._identity)
            return Copied(form, state, seconds=time.monotonic() - began_s)

    def _copy_touched(self, session: Session) -> Copied | None:
        assert self._folder is not None
        whole = self._folder.newest()
        if self._touched is None or whole is None or not (stamp := self._stamp_of(whole)):
            return None
        snapshot = self._touched.snapshot
        if snapshot.since(session) != stamp:
            return None
        began_s = time.monotonic()
        state, changes = _of_one_round(snapshot, session)
        if changes and changes.since == stamp:
            return Copied(self._touched, state, changes, whole, time.monotonic() - began_s)
        snapshot.release(session)
        return None

    def _stamp_of(self, path: str) -> int:
        """The stamp of the copy that a checkpoint was written from; 0 if it is unknown."""
        try:
            return SavedState.of_text(Path(path + SUFFIX).read_text(encoding="utf-8")).stamp
        except (OSError, ValueError):
            return 0

    def write(self, session: Session, copied: Copied) -> Transferred:
        """Writes the last copy.  May be called in another thread than `copy`, one call at a time.

        Raises:
            CheckpointError: it could not be written, or another process made a copy or wrote a checkpoint since.
                The ones before it are untouched.
        """
        assert self._folder is not None
        state, changes = copied.state, copied.changes
        failure = f"checkpoint {state.global_step} was not written to {self._folder.path}"
        snapshot = copied.form.snapshot
        began_s = time.monotonic()
        try:
            with failing(failure), self._folder.unfinished(state.global_step, copied.whole) as new:
                unshared = self._shared.obstacle(session, new.folder)
                copied.form.write(session, new, not unshared, changes)
                Path(new.merged + SUFFIX).write_text(state.text(), encoding="utf-8")
                if not snapshot.is_ours(session):
                    raise CheckpointError(f"{failure}: another chief has begun one since")
                if not snapshot.is_current(session, state):
                    raise CheckpointError(f"{failure}: variables were updated meanwhile")
                if self.owner:
                    self.owner.require_now()
                path = self._folder.publish_delta(new) if changes else self._folder.publish(new)
                return Transferred(path, unshared, time.monotonic() - began_s)
        finally:
            with suppress(tf1.errors.OpError, RuntimeError):  # RuntimeError: the session was closed
                snapshot.release(session, self._snapshots)

    def save(self, session: Session) -> Transferred | None:
        """`copy`, then `write`, while no worker trains."""
        copied = self.copy(session, is_paused=True)
        return None if copied is None else self.write(session, copied)

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
            reader = tf1.train.load_checkpoint(readable(path))
            if GLOBAL_STEP.name in reader.get_variable_to_shape_map():
                return SavedState(int(reader.get_tensor(GLOBAL_STEP.name)))
        return SavedState(step_of(path) or 0)

    def is_unlike(self, state: SavedState) -> str:
        """How the model differs from that of a checkpoint with these counters; empty if no difference is known."""
        if state.identity is None:
            return ""
        both, whose = (self._identity.without(PROTOCOL), state.identity.without(PROTOCOL)), "the checkpoint"
        return in_a_line(chain(differences(*both, whose), remarks(*both, whose)))

    def restore(
        self, session: Session, path: str, global_step: int, every_ps: Collection[int], incarnation: int
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
            began_s = time.monotonic()
            sources, changes = self._sources(path), self._changes(path)
            unshared = self._unshared(session)
            self._reader.read(session, sources, not unshared, every_ps, incarnation)
            self._row_reader.begin(session, self._stamp_of(whole_of(path) or path), every_ps, incarnation)
            if changes:
                self._row_reader.read(session, readable(path), changes, not unshared, every_ps, incarnation)
            if GLOBAL_STEP.ps in every_ps:
                self._fence.run(session, incarnation, self._set_step, {self._restored_step: [global_step]})
        return Transferred(path, unshared, time.monotonic() - began_s)

    def _unshared(self, session: Session) -> str:
        """Why the ps cannot read the folder themselves; empty if they can."""
        assert self._folder is not None
        if is_pattern(self._folder.path):
            return "TensorFlow on a ps takes the folder's name for a pattern"
        try:
            with self._folder.scratch("probe") as scratch:
                return self._shared.obstacle(session, scratch)
        except OSError as error:  # of the chief's own test file; the checkpoint may be readable nevertheless
            return f"the folder cannot be written: {error.strerror}"

    def _changes(self, path: str) -> RowChanges | None:
        """The rows of a delta; None if it is none.

        Raises:
            ValueError: the whole checkpoint beside it is another one, or it lacks rows.
        """
        whole = whole_of(path)
        if whole is None:
            return None
        changes = RowChanges.of_text(Path(path + ROWS_SUFFIX).read_text(encoding="utf-8"))
        if changes.since != self._stamp_of(whole):
            raise ValueError(f"it is a delta of another {whole}")
        there = contents_of(path)
        for name, rows in changes.heights(NUMBERS).items():
            if name not in there or there[name][0] != (rows,):
                raise ValueError(f"it should have {rows} rows {name}")
        return changes

    def _sources(self, path: str) -> dict[str, Source]:
        """Where each entry is; rows of tables that a delta lacks are in its whole checkpoint."""
        there, whole = contents_of(path), whole_of(path)
        if whole is None:
            return self._found(path, there, self._entries)
        in_whole = {e.name for e in self._entries if e.name in self._of_tables and e.name not in there}
        of_tables = self._found(whole, contents_of(whole), [e for e in self._entries if e.name in in_whole])
        return of_tables | self._found(path, there, [e for e in self._entries if e.name not in in_whole])

    def _found(self, path: str, there: Mapping[str, Found], entries: Sequence[Entry]) -> dict[str, Source]:
        sources, misfits = find_sources(entries, there)
        if misfits:
            raise CheckpointError(
                f"checkpoint {path} does not fit the model: {some(misfits, 3, '; ')}; "
                "give the model that it was written with, or another --checkpoint-dir"
            )
        path = readable(path)
        return {entry: Source(path, name) for entry, name in sources.items()}


def written(path: str) -> tuple[str, int]:
    """Distinguishes a checkpoint from an earlier one of its name."""
    return path, written_ns(path)


def _of_one_round(snapshot: Snapshot, session: Session) -> tuple[SavedState, RowChanges | None]:
    """Copies until no round is applied meanwhile: with backup workers no round waits for the chief."""
    for _ in range(COPIES - 1):
        try:
            return snapshot.take(session)
        except PassedRoundError:
            continue
    return snapshot.take(session)


@contextmanager
def failing(what: str, advice: str = "", kind: type[CheckpointError] = CheckpointError) -> Iterator[None]:
    """Raises a failure inside as an error of this kind, but for a session that is lost, or closed for another one."""
    try:
        yield
    except (*LOST_SESSION, FolderOwnedError):
        raise
    except (tf1.errors.OpError, OSError, ValueError, IndexError, RuntimeError) as error:
        if is_closed(error):
            raise tf1.errors.AbortedError(None, None, first_line(error)) from error
        kind = kind if _is_damage(error) else CheckpointError
        raise kind(f"{what}: {first_line(error)}{advice}") from error


def _is_damage(error: Exception) -> bool:
    """Whether an older checkpoint may be read all the same, as the table of faults has it (Place.RESTORE).

    TensorFlow's reader of checkpoints (`load_checkpoint`) gives its errors no code: whether a file is cut off or cannot
    be reached is in the text alone.
    """
    of_reader = type(error) is tf1.errors.OpError or of_system(str(getattr(error, "message", ""))) is not None
    return FATES[Place.RESTORE][kind_of(error)] is None if of_reader else isinstance(error, DAMAGE)


def _reading(path: str) -> AbstractContextManager[None]:
    advice = "; bring its files back, or give another --checkpoint-dir"
    return failing(f"checkpoint {path} cannot be read", advice, DamagedCheckpointError)
