"""How TensorFlow reads a checkpoint: by which path, and whether it has the variables of a model.

`tf.train.load_checkpoint`, `tf.train.Saver`, the operation RestoreV2 and the loader of SavedModels match the prefix of
a checkpoint against the files first, and open it literally then.  So neither a path with `[ ] * ?` or a backslash nor
an escaped one is read.  Another path to the same folder has no such character: `/proc/self/fd/N`, a descriptor that
this process keeps open.  It leaves nothing behind and is of this process alone, so a ps cannot be given it.

Writers use every path literally: SaveV2, MergeV2Checkpoints, the writer of events.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection, Sequence

import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.saved_state import SUFFIX
from psruntime.core.recovery.checkpoint_names import Found, described
from psruntime.errors import UsageError
from psruntime.graph.base.types import Variable

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
        name, wanted = name_of(variable), found_as(variable)
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


def found_as(variable: Variable) -> Found:
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
