"""How a checkpoint is read: by which path, whether it has the variables of a model, and of large ones a few rows.

`tf.train.load_checkpoint`, `tf.train.Saver`, the operation RestoreV2 and the loader of SavedModels match the prefix of
a checkpoint against the files first, and open it literally then.  So neither a path with `[ ] * ?` or a backslash nor
an escaped one is read.  Another path to the same folder has no such character: `/proc/self/fd/N`, a descriptor that
this process keeps open.  It leaves nothing behind and is of this process alone, so a ps cannot be given it.  Writers
use every path literally: SaveV2, MergeV2Checkpoints, the writer of events.

The rows of large variables that an evaluation does not look up need no memory.  Some batches are drawn first.  The ids
that they look up depend on them alone, so those rows are read from the checkpoint, a chunk of the table at a time, and
the lookups read these.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.saved_state import SUFFIX
from psruntime.core.recovery.checkpoint_names import Found, described
from psruntime.errors import UsageError
from psruntime.graph.base.graphs import ancestors
from psruntime.graph.base.types import Array, DType, Feed, Op, Session, Tensor, Variable
from psruntime.graph.base.variable_values import row_chunks

_OF_PATTERNS = frozenset("*?[\\")
_lock = threading.Lock()
_descriptors: dict[str, int] = {}  # by folder


def is_pattern(path: str) -> bool:
    """Whether TensorFlow reads the path as a pattern."""
    return not _OF_PATTERNS.isdisjoint(path)


def escaped(path: str) -> str:
    """The pattern that matches this path alone, as `tf.gfile.Glob` reads patterns."""
    return "".join(f"\\{each}" if each in _OF_PATTERNS else each for each in path)


def readable(path: str) -> str:
    """The path by which TensorFlow reads a checkpoint or SavedModel in this process; itself if it is no pattern.

    path: of a folder, or the prefix of a checkpoint's files.

    Raises:
        OSError: the folder cannot be opened.
    """
    if not is_pattern(path) or "://" in path:
        return path
    if os.path.isdir(path):
        return _descriptor_of(path)
    folder, name = os.path.split(path)
    return os.path.join(_descriptor_of(folder) if is_pattern(folder) else folder, name)


def _descriptor_of(folder: str) -> str:
    with _lock:
        number = _descriptors.get(folder)
        if number is None or not os.path.samestat(os.fstat(number), os.stat(folder)):  # removed, and made again
            if number is not None:
                os.close(number)
            _descriptors[folder] = number = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{number}"


GLOBAL_STEP = "global_step"


def require_fit(
    variables: Sequence[Variable], checkpoint: str, of_training: Callable[[], Collection[str] | None]
) -> None:
    """Checks names, shapes and dtypes: restoring checks neither the shapes nor variables that are left over.

    of_training: returns the names of the model's variables in mode train, or None if it cannot be built; called if the
    checkpoint has a variable that is not among those of this graph.

    Raises:
        UsageError: the checkpoint lacks a variable or has it otherwise, or psruntime wrote it with one that the model
            has in no mode; names the first.
        OpError, ValueError: the checkpoint cannot be read.
    """
    if not variables:
        return
    there = contents_of(checkpoint)
    for variable in variables:
        name, wanted = name_of(variable), _found_as(variable)
        if there.get(name) != wanted:
            found = described(there[name]) if name in there else "not there"
            raise UsageError(
                f"checkpoint {checkpoint} is of another model: variable {name} is {found}, and {described(wanted)} in "
                "the model; give the --model that it was written with"
            )
    more = _variables_in(there, checkpoint) - {name_of(variable) for variable in variables}
    known = of_training() if more else None
    if known is not None and (unknown := sorted(more.difference(known))):
        found = described(there[unknown[0]])
        raise UsageError(
            f"checkpoint {checkpoint} is of another model: variable {unknown[0]} is {found}, and the model has none of "
            "this name; give the --model that it was written with"
        )


def contents_of(checkpoint: str) -> dict[str, Found]:
    """Shape and dtype of each tensor of a checkpoint, by name.

    Raises:
        OpError, ValueError, OSError: it cannot be read.
    """
    reader = tf1.train.NewCheckpointReader(readable(checkpoint))  # load_checkpoint treats a path of ram:// as a folder
    dtypes = reader.get_variable_to_dtype_map()
    return {name: (tuple(s), dtypes[name].name) for name, s in reader.get_variable_to_shape_map().items()}


def _found_as(variable: Variable) -> Found:
    """Shape and dtype of a variable in a checkpoint; those of the whole for a part of a partitioner."""
    part = variable._save_slice_info
    return tuple(part.full_shape if part else variable.shape.as_list()), variable.dtype.base_dtype.name


def name_of(variable: Variable) -> str:
    """The name of a variable in a checkpoint; that of the whole for a part of a partitioner."""
    part = variable._save_slice_info
    return part.full_name if part else str(variable.op.name)


def _variables_in(names: Collection[str], checkpoint: str) -> set[str]:
    """The model's variables among the names of a checkpoint that psruntime wrote; none of another checkpoint.

    An optimizer's slot of NAME is called NAME/SLOT, and a variable that it has once for all SLOT or SLOT_1 as well.
    """
    if not tf1.gfile.Exists(f"{checkpoint}{SUFFIX}"):
        return set()
    of = {
        name: [name[:end] for end, letter in enumerate(name) if letter == "/" and name[:end] in names] for name in names
    }
    slots = {name.removeprefix(f"{owner}/") for name, owners in of.items() for owner in owners}
    return {
        name
        for name, owners in of.items()
        if not owners and name != GLOBAL_STEP and re.sub(r"_\d+$", "", name) not in slots
    }


LARGE_BYTES = 64 << 20  # a smaller variable is loaded whole
BATCHES_BYTES = 256 << 20  # of batches for which rows are read at once
_UNUSED = ("AssignVariableOp", "VarIsInitializedOp")  # in an evaluation


class RowsInUse:
    """Replaces the large variables of the current graph, which is built, where they are only looked up.

    A variable stays if anything but a lookup reads it, or if its ids do not depend on the batch alone.

    variables: those that were replaced, and have no value.
    """

    def __init__(self, variables: Iterable[Variable]) -> None:
        self._tables = [_Table(v, lookups) for v in variables if _is_large(v) and (lookups := _lookups_of(v))]
        self.variables = [table.variable for table in self._tables]

    def load(self, session: Session, path: str, feeds: Sequence[Feed]) -> None:
        """Gives the lookups the rows that they need with these feeds, from the checkpoint `path`.

        Raises:
            ValueError: there is no such row.
            OpError: the checkpoint cannot be read.
        """
        wanted: list[list[Array]] = [[] for _ in self._tables]
        for feed in feeds:
            indices = session.run([table.indices for table in self._tables], feed)
            for of_table, arrays in zip(wanted, indices, strict=True):
                of_table.append(np.unique(np.concatenate([array.ravel() for array in arrays])))
        for table, arrays in zip(self._tables, wanted, strict=True):
            table.load(session, path, np.unique(np.concatenate(arrays)).astype(np.int64))


class _Table:
    """One variable, whose lookups read rows that are loaded.  indices: of its lookups."""

    def __init__(self, variable: Variable, lookups: list[Op]) -> None:
        self.variable = variable
        self.indices = [op.inputs[1] for op in lookups]
        self._dtype, (self._height, *self._row_shape) = variable.dtype.base_dtype, variable.shape.as_list()
        part = variable._save_slice_info
        self._name = part.full_name if part else variable.op.name
        self._shape = part.full_shape if part else variable.shape.as_list()
        self._begin = part.var_offset if part else [0] * len(self._shape)
        self._slice = tf1.placeholder(tf1.string, [], name="slice")
        self._path = tf1.placeholder(tf1.string, [], name="path")
        (self._chunk,) = tf1.raw_ops.RestoreV2(
            prefix=self._path, tensor_names=[self._name], shape_and_slices=self._slice[None], dtypes=[self._dtype]
        )
        self._ids = _Loaded(f"{variable.op.name}/ids_in_use", tf1.int64, [None])
        self._rows = _Loaded(f"{variable.op.name}/rows_in_use", self._dtype, [None, *self._row_shape])
        for op in lookups:
            self._redirect(op)

    def load(self, session: Session, path: str, ids: Array) -> None:
        """ids: int64 [ids], different, ascending."""
        if ids.size and not 0 <= ids[0] <= ids[-1] < self._height:
            wrong = ids[0] if ids[0] < 0 else ids[-1]
            raise ValueError(f"row {wrong} of {self.variable.op.name} is looked up, which has {self._height} rows")
        rows = np.empty([ids.size, *self._row_shape], self._dtype.as_numpy_dtype)
        for start, count in row_chunks((self._height, *self._row_shape), self._dtype.size):
            first, end = np.searchsorted(ids, [start, start + count])
            if first < end:
                chunk = session.run(self._chunk, {self._path: path, self._slice: self._slice_of(start, count)})
                rows[first:end] = chunk[ids[first:end] - start]
        session.run([self._ids.assign, self._rows.assign], {self._ids.value: ids, self._rows.value: rows})

    def _slice_of(self, start: int, count: int) -> str:
        """Rows of the tensor in the checkpoint, in the form of `tf.raw_ops.SaveV2`."""
        of_rows = zip(self._begin[1:], self._row_shape, strict=True)
        axes = [f"{self._begin[0] + start},{count}", *(f"{begin},{length}" for begin, length in of_rows)]
        return f"{' '.join(map(str, self._shape))} {':'.join(axes)}"

    def _redirect(self, op: Op) -> None:
        found, consumers = op.outputs[0], op.outputs[0].consumers()
        with tf1.name_scope(f"{op.name}/"):
            indices = tf1.cast(op.inputs[1], tf1.int64)
            places = tf1.searchsorted(self._ids.read(), tf1.reshape(indices, [-1]), out_type=tf1.int64)
            rows = tf1.gather(self._rows.read(), tf1.reshape(places, tf1.shape(indices)))
            rows.set_shape(found.shape)
        for consumer in consumers:
            for number, tensor in enumerate(consumer.inputs):
                if tensor is found:
                    consumer._update_input(number, rows)


class _Loaded:
    """A tensor that is kept in the session.  assign: an operation that assigns it the `value`, a placeholder."""

    def __init__(self, name: str, dtype: DType, shape: list[int | None]) -> None:
        self._dtype, self._shape = dtype, shape
        self.value = tf1.placeholder(dtype, shape, name="loaded")
        self._handle = tf1.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name)
        self.assign = tf1.raw_ops.AssignVariableOp(resource=self._handle, value=self.value)

    def read(self) -> Tensor:
        value = tf1.raw_ops.ReadVariableOp(resource=self._handle, dtype=self._dtype)
        value.set_shape(self._shape)
        return value


def _is_large(variable: Variable) -> bool:
    size = variable.shape.num_elements()
    return size is not None and bool(variable.shape.rank) and size * variable.dtype.base_dtype.size > LARGE_BYTES


def _lookups_of(variable: Variable) -> list[Op]:
    """The operations that look its rows up; none if anything else reads it, or they need more than the batch."""
    lookups = []
    handle = getattr(variable, "handle", None)
    if handle is None or handle.dtype != tf1.resource:
        return []
    for op in handle.consumers():
        if op.type == "ResourceGather" and op.get_attr("batch_dims") == 0 and _is_of_batch(op.inputs[1]):
            lookups.append(op)
        elif op.type not in _UNUSED and not (op.type == "ReadVariableOp" and not _is_read(op)):
            return []
    return lookups


def _is_of_batch(tensor: Tensor) -> bool:
    """Whether it has the same value each time that it is computed from a batch."""
    return not any(op.op_def is None or op.op_def.is_stateful for op in ancestors([tensor]))


def _is_read(op: Op) -> bool:
    """Whether an operation uses the result, directly or through Identity operations."""
    return any(used.type != "Identity" or _is_read(used) for tensor in op.outputs for used in tensor.consumers())
