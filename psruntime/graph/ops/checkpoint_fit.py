"""Whether a checkpoint has the variables of a model that is built to be measured or exported."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.saved_state import SUFFIX
from psruntime.errors import UsageError
from psruntime.graph.base.literal_paths import readable

GLOBAL_STEP = "global_step"


def require_fit(variables: Sequence[Any], checkpoint: str, of_training: Callable[[], Collection[str] | None]) -> None:
    """Checks names, shapes and dtypes: restoring does not look at the shapes, nor at what is left over.

    of_training: gives the names of the model's variables in mode train, or None if it cannot be built; called if the
    checkpoint has a variable that is not among these.

    Raises:
        UsageError: the checkpoint lacks a variable or has it otherwise, or psruntime wrote it with one that the model
            has in no mode; names the first.
        OpError, ValueError: the checkpoint cannot be read.
    """
    if not variables:
        return
    reader = tf1.train.load_checkpoint(readable(checkpoint))
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    for variable in variables:
        part, name = variable._save_slice_info, name_of(variable)
        shape = list(part.full_shape) if part else variable.shape.as_list()
        wanted = f"{variable.dtype.base_dtype.name} {shape}"
        found = f"{dtypes[name].name} {list(shapes[name])}" if name in shapes else "not there"
        if found != wanted:
            raise UsageError(
                f"checkpoint {checkpoint} is of another model: variable {name} is {found}, and {wanted} in the model; "
                "give the --model that it was written with"
            )
    more = _variables_in(shapes, checkpoint) - {name_of(variable) for variable in variables}
    known = of_training() if more else None
    if known is not None and (unknown := sorted(more.difference(known))):
        found = f"{dtypes[unknown[0]].name} {list(shapes[unknown[0]])}"
        raise UsageError(
            f"checkpoint {checkpoint} is of another model: variable {unknown[0]} is {found}, and the model has none of "
            "this name; give the --model that it was written with"
        )


def name_of(variable: Any) -> str:
    """Of a variable in a checkpoint; that of the whole for a part of a partitioner."""
    part = variable._save_slice_info
    return part.full_name if part else str(variable.op.name)


def _variables_in(names: Collection[str], checkpoint: str) -> set[str]:
    """The model's variables among the names of a checkpoint that psruntime wrote: what an optimizer keeps of NAME is
    called NAME/SLOT.  Of another checkpoint nothing is known."""
    if not tf1.gfile.Exists(f"{checkpoint}{SUFFIX}"):
        return set()
    return {
        name
        for name in names
        if name != GLOBAL_STEP and not any(name[:end] in names for end, letter in enumerate(name) if letter == "/")
    }
