"""Checkpoints: logical variables under the model's own names, so that any plan reads what any plan wrote.

Stock TensorFlow reads them, and theirs are read here (saveables.py, core/checkpoint_names.py).  Where every ps sees
the folder, each writes and reads the part that it holds; else the chief does, for all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.checkpoint_names import find_sources
from psruntime.errors import CheckpointError
from psruntime.graph.checkpoint_folder import CheckpointFolder
from psruntime.graph.devices import ps_device, worker_cpu
from psruntime.graph.round_store import APPLIED_ATTEMPT
from psruntime.graph.saveables import parts_of, step_part, to_write
from psruntime.graph.session import LOST_SESSION, first_line
from psruntime.graph.shared_folder import SharedFolder
from psruntime.graph.store import GLOBAL_STEP
from psruntime.graph.training import TrainGraph
from psruntime.graph.transfer import Reader, Writer


@dataclass(frozen=True)
class Moved:
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
        master = graph.global_step.master
        with graph.graph.as_default(), tf1.name_scope("checkpoint"):
            parts = parts_of(graph)
            self._entries = list({part.entry.name: part.entry for part in parts}.values())
            self._writer = Writer([step_part(graph), *to_write(parts)], index)
            self._reader = Reader(parts, index)
            self._shared = SharedFolder(sorted({GLOBAL_STEP.ps, *(part.ps for part in parts)}))
            with tf1.device(worker_cpu(index)):
                self._rounds = [r.look() for r in graph.rounds.stores] if graph.rounds else []
                self._global_step = master.read_value()[0]
            with tf1.device(ps_device(GLOBAL_STEP.ps)):
                self._restored_step = tf1.placeholder(tf1.int64, [1], name="restored_step")
                self._set_step = master.assign(self._restored_step, read_value=False)

    def check_folder(self) -> None:
        """Makes the folder and proves that it can be written.

        Raises:
            CheckpointError: it cannot.
        """
        if self._folder:
            self._folder.require_writable()

    def latest(self) -> str | None:
        """The newest checkpoint of the folder, as the prefix of its files; None in an empty folder.

        Raises:
            CheckpointError: the folder's list names a file that is not there.
        """
        return self._folder.newest() if self._folder else None

    def save(self, session: Any, global_step: int) -> Moved | None:
        """Writes a checkpoint; None without a folder.

        Raises:
            CheckpointError: it could not be written, or in mode sync it would not be exactly the parameters of round
                `global_step`, or another process wrote one meanwhile.  The ones before it are untouched.
        """
        if not self._folder:
            return None
        try:
            with self._folder.unfinished(global_step) as new:
                unshared = self._shared.obstacle(session, new.folder)
                before = self._cut(session)
                self._writer.write(session, new.folder, new.merged, not unshared)
                if self._rounds and not before == self._cut(session) == (
                    before[0][:1] * len(self._rounds),
                    global_step,
                ):
                    # This process was paused, and another is the chief meanwhile.
                    raise CheckpointError(
                        f"checkpoint {global_step} was not kept: rounds were closed while it was written"
                    )
                return Moved(self._folder.publish(new), unshared)
        except LOST_SESSION:
            raise
        except (tf1.errors.OpError, OSError, ValueError) as error:
            reason = first_line(error)
            raise CheckpointError(
                f"checkpoint {global_step} was not written to {self._folder.path}: {reason}"
            ) from error

    def _cut(self, session: Any) -> tuple[list[int], int]:
        """(last applied attempt of every bucket, global step); attempts in mode sync only."""
        books, global_step = session.run([self._rounds, self._global_step])
        return [int(row[APPLIED_ATTEMPT]) for row in books], int(global_step)

    def restore(self, session: Any, path: str) -> Moved:
        """Restores masters, optimizer variables and global step from `path`.

        It may be one of stock TensorFlow; one without a global step has the number at the end of its name, or 0.

        Raises:
            CheckpointError: it cannot be read, or lacks a variable or has it in another shape or dtype;
                names them.
        """
        assert self._folder is not None
        try:
            sources, global_step = self._sources(path)
            with self._folder.scratch("probe") as scratch:
                unshared = self._shared.obstacle(session, scratch)
            self._reader.read(session, path, sources, not unshared)
            session.run(self._set_step, {self._restored_step: [global_step]})
        except LOST_SESSION:
            raise
        except (tf1.errors.OpError, OSError, ValueError) as error:
            raise CheckpointError(
                f"checkpoint {path} cannot be read: {first_line(error)}; bring its files back, or give another "
                "--checkpoint-dir"
            ) from error
        return Moved(path, unshared)

    def _sources(self, path: str) -> tuple[Mapping[str, str], int]:
        """(name there of each entry, global step)"""
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
        if GLOBAL_STEP.name in there:
            return sources, int(reader.get_tensor(GLOBAL_STEP.name))
        number = re.search(r"-(\d+)$", path)
        return sources, int(number[1]) if number else 0
