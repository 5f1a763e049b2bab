"""Moves the parts of a checkpoint between the variables on the ps and files, by TensorFlow's own operations.

Either the chief writes and reads all files, or, where all see the same folder, each ps those of its own variables, and
of a table group as many rows of each table, which it reads from all ps.
Parts are moved in chunks, one after the other on each device, so that a process needs memory for one chunk besides
the variables.  Each chunk is a file, so a tenth of the size would make ten times as many.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

import tensorflow.compat.v1 as tf1

from psruntime.graph.base import variable_values
from psruntime.graph.base.server import ps_device, worker_cpu
from psruntime.graph.base.types import Feed, Op, Session, Tensor
from psruntime.graph.base.variable_values import assign_rows, initialise
from psruntime.graph.buckets.bucket_store import ChiefFence
from psruntime.graph.checkpoint.entries import CheckpointPart, InterleavedPart

P = TypeVar("P", bound=CheckpointPart | InterleavedPart)


class Source(NamedTuple):
    """Where a tensor is: the checkpoint, as the prefix of its files, and its name there."""

    path: str
    name: str


Value = Callable[..., Tensor]  # (variable, or with first row and rows) -> the value to save, on its ps


class Writer:
    """Writes parts, whose values `value` returns; in the current graph, for worker `index` as the chief."""

    def __init__(self, parts: Sequence[CheckpointPart | InterleavedPart], index: int, value: Value) -> None:
        parts = [rows for part in parts for rows in part.in_rows()]
        self._whole = [_Saving(worker_cpu(index), chunks(parts), value)]
        self._sharded = [_Saving(ps_device(ps), chunks(own), value) for ps, own in _by_ps(parts)]
        with tf1.device(worker_cpu(index)):
            self._written = tf1.placeholder(tf1.string, [None], name="written")
            self._merged = tf1.placeholder(tf1.string, [], name="merged")
            self._merge = tf1.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=self._written, destination_prefix=self._merged, delete_old_dirs=False
            )

    def write(self, session: Session, folder: str, merged: str, sharded: bool, others: Sequence[str] = ()) -> None:
        """Writes the files of all parts into `folder`, then makes them one checkpoint with the prefix `merged`.

        others: prefixes of files that belong to it, and are written.
        """
        savings = self._sharded if sharded else self._whole
        prefixes = [[f"{folder}/part-{i}-{j}" for j in range(len(s.prefixes))] for i, s in enumerate(savings)]
        feed = {t: p for s, ps in zip(savings, prefixes, strict=True) for t, p in zip(s.prefixes, ps, strict=True)}
        session.run([saving.last for saving in savings], feed)
        written = [*others, *(prefix for of_device in prefixes for prefix in of_device)]
        session.run(self._merge, {self._written: written, self._merged: merged})


class Reader:
    """Reads parts; in the current graph, for worker `index` as the chief.

    Reading takes minutes, in which another may have become chief, so the fence is checked before each chunk is written.

    keeps: whether the variables have values, which stay where nothing is read; else they may be new.
    """

    def __init__(self, parts: list[CheckpointPart], index: int, fence: ChiefFence, keeps: bool = False) -> None:
        self._fence = fence
        every_ps = _by_ps([rows for part in parts for rows in part.in_rows()])
        self._by_chief = {ps: _Restoring(worker_cpu(index), chunks(own, True), fence, keeps) for ps, own in every_ps}
        self._sharded = {ps: _Restoring(ps_device(ps), chunks(own, True), fence, keeps) for ps, own in every_ps}

    def read(
        self,
        session: Session,
        sources: Mapping[str, Source],
        sharded: bool,
        every_ps: Collection[int],
        incarnation: int,
    ) -> None:
        """Restores the parts of these ps; `sources` are those of all entries.  All of a bucket must be in one file."""
        if sharded:
            self._read(session, sources, [r for ps, r in self._sharded.items() if ps in every_ps], incarnation)
            return
        for ps, restoring in self._by_chief.items():  # one after the other, so that the chief has one chunk in memory
            if ps in every_ps:
                self._read(session, sources, [restoring], incarnation)

    def _read(
        self, session: Session, sources: Mapping[str, Source], restorings: list[_Restoring], incarnation: int
    ) -> None:
        feed: Feed = {}
        for restoring in restorings:
            for prefix, names, chunk in restoring.chunks:
                of_chunk = [sources[part.entry.name] for part in chunk]
                if len({source.path for source in of_chunk}) > 1:
                    raise ValueError(f"{chunk[0].entry.name} and {chunk[-1].entry.name} are in different files")
                feed[prefix], feed[names] = of_chunk[0].path, [source.name for source in of_chunk]
        self._fence.run(session, incarnation, [restoring.last for restoring in restorings], feed)


class _Saving:
    """The writing of chunks by one device.  prefixes: placeholders, one a chunk.  last: runs after all."""

    def __init__(self, device: str, chunks: Iterable[list[CheckpointPart | InterleavedPart]], value: Value) -> None:
        self.prefixes: list[Tensor] = []
        self.last: Op = None
        for chunk in chunks:
            with tf1.device(device):
                self.prefixes.append(tf1.placeholder(tf1.string, [], name="prefix"))
            with tf1.control_dependencies([self.last] if self.last else []):
                tensors = [_in_order(part, device, value) for part in chunk]
                with tf1.device(device):
                    self.last = tf1.raw_ops.SaveV2(
                        prefix=self.prefixes[-1],
                        tensor_names=[part.entry.name for part in chunk],
                        shape_and_slices=[part.slice_spec for part in chunk],
                        tensors=tensors,
                    )


class _Restoring:
    """The reading of chunks by one device.  chunks: (placeholder of the path, that of names, its parts).  last:
    runs after all."""

    def __init__(self, device: str, chunks: Iterable[list[CheckpointPart]], fence: ChiefFence, keeps: bool) -> None:
        self.chunks: list[tuple[Tensor, Tensor, list[CheckpointPart]]] = []
        self.last: Op = None
        for chunk in chunks:
            with tf1.device(device):
                prefix = tf1.placeholder(tf1.string, [], name="prefix")
                names = tf1.placeholder(tf1.string, [len(chunk)], name="names")
            with tf1.device(device), tf1.control_dependencies([self.last] if self.last else []):
                tensors = tf1.raw_ops.RestoreV2(
                    prefix=prefix,
                    tensor_names=names,
                    shape_and_slices=[part.slice_spec for part in chunk],
                    dtypes=[part.variable.dtype.base_dtype for part in chunk],
                )
            self.chunks.append((prefix, names, chunk))
            with tf1.device(device):
                own = [_own(part, tensor) for part, tensor in zip(chunk, tensors, strict=True)]
            tensor_of = list(zip(chunk, own, strict=True))
            every_ps = sorted({part.ps for part in chunk})
            passed = [fence.passed(ps, [value for part, value in tensor_of if part.ps == ps]) for ps in every_ps]
            with tf1.control_dependencies(passed):
                of_variables = [list(of_one) for _, of_one in groupby(tensor_of, lambda p: _of(p[0]))]
                self.last = tf1.group(*[_assign(of_one, keeps) for of_one in of_variables])


def _in_order(part: CheckpointPart | InterleavedPart, device: str, value: Value) -> Tensor:
    """The tensor that is written for a part: on its ps, or on `device` for rows that are on several ps."""
    if isinstance(part, CheckpointPart):
        return _shaped(part, value)
    positions, rows = [], []
    for number, own in enumerate(part.slices):
        first, count, position = part.of_slice(number)
        if not count:
            continue
        with tf1.device(ps_device(own.ps)):
            rows.append(tf1.reshape(_of_part(own, value, first, count), [-1, *part.shape[1:]]))
        with tf1.device(device):
            positions.append(tf1.range(position, part.rows, len(part.slices)))
    with tf1.device(device):
        return tf1.reshape(tf1.dynamic_stitch(positions, rows), part.shape)


def _of_part(part: CheckpointPart, value: Value, *rows: int) -> Tensor:
    """The value of its variable, or rows of it, on its ps; of points of time how long ago they are."""
    own = value(part.variable, *rows)
    return own if part.clock is None else _ago(part, own, value(part.clock))


def _own(part: CheckpointPart, read: Tensor) -> Tensor:
    """The value of a part's variable, from the tensor that was read for it."""
    rows = read[:: part.stride] if part.stride > 1 else read
    return rows if part.clock is None else _ago(part, rows, part.clock.read_value())


def _ago(part: CheckpointPart, times: Tensor, now: Tensor) -> Tensor:
    """How long ago points of time are, or the other way round."""
    with tf1.device(ps_device(part.ps)):
        return now - times


def _shaped(part: CheckpointPart, value: Value) -> Tensor:
    """The part's value, on its ps, in the shape that it has in a checkpoint."""
    own = _of_part(part, value) if part.is_all else _of_part(part, value, *part.rows)
    with tf1.device(ps_device(part.ps)):
        return own if own.shape == part.shape else tf1.reshape(own, part.shape)


def _assign(parts: list[tuple[CheckpointPart, Tensor]], keeps: bool) -> Op:
    """Assigns a variable the values of all its parts, or of a large one the rows of these; keeps: as of Reader."""
    variable = parts[0][0].variable
    for part, value in parts:
        value.set_shape(part.shape)
    if sum(part.size for part, _ in parts) < variable.shape.num_elements():
        last: Op = None
        for part, value in parts:  # the first one makes the variable
            with tf1.control_dependencies([last] if last else []):
                last = _assign_rows(part, value, keeps)
        return last
    with tf1.device(ps_device(parts[0][0].ps)):
        flat = [tf1.reshape(value, [-1]) for _, value in parts] if len(parts) > 1 else []
        value = tf1.concat(flat, axis=0) if flat else parts[0][1]
        own = value if value.shape == variable.shape else tf1.reshape(value, variable.shape)
        return variable.assign(own, read_value=False)


def _assign_rows(part: CheckpointPart, value: Tensor, keeps: bool) -> Op:
    """Assigns the rows of a part of a large variable.  The first part initialises the variable, unless it has values
    that it keeps."""
    shape, (first, rows) = part.variable.shape.as_list(), part.rows
    with tf1.device(ps_device(part.ps)):
        # Only a few rows of no table, in a bucket of a table group, keep these initial values.
        made = [] if first or keeps else [initialise(part.variable)]
        with tf1.control_dependencies(made):
            return assign_rows(part.variable.handle, first, tf1.reshape(value, [rows, *shape[1:]]))


def _of(part: CheckpointPart | InterleavedPart) -> int:
    """Identifies the variable that it is a part of."""
    return id(part.variable)


def _by_ps(parts: list[P]) -> list[tuple[int, list[P]]]:
    """(ps, its parts), for each ps that has any."""
    return [(ps, [p for p in parts if p.ps == ps]) for ps in sorted({part.ps for part in parts})]


def chunks(parts: list[P], tables_apart: bool = False) -> Iterator[list[P]]:
    """The parts in their order, in runs of at most CHUNK_BYTES.

    Those of a variable stay together, unless it is larger.  tables_apart: whether tables are in no run with others.
    """
    limit = variable_values.CHUNK_BYTES
    chunk: list[P] = []
    total_bytes = 0
    for _, of_one in groupby(parts, _of):
        of_variable = list(of_one)
        size_bytes = sum(part.moved_bytes for part in of_variable)
        for together in [of_variable] if size_bytes <= limit else [[part] for part in of_variable]:
            size_bytes = sum(part.moved_bytes for part in together)
            is_apart = tables_apart and any(part.of_table for part in (together[0], *chunk[-1:]))
            if chunk and (total_bytes + size_bytes > limit or is_apart):
                yield chunk
                chunk, total_bytes = [], 0
            chunk += together
            total_bytes += size_bytes
    if chunk:
        yield chunk
