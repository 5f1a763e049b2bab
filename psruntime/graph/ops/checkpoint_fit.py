"""Whether a checkpoint has the variables of a model that is built to be measured or exported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.graph.base.literal_paths import readable


def require_fit(variables: Sequence[Any], checkpoint: str) -> None:
    """Checks names, shapes and dtypes: restoring does not look at the shapes.

    Raises:
        UsageError: the checkpoint lacks a variable or has it otherwise; names the first.
        OpError, ValueError: the checkpoint cannot be read.
    """
    if not variables:
        return
    reader = tf1.train.load_checkpoint(readable(checkpoint))
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    for variable in variables:
        part = variable._save_slice_info
        name = part.full_name if part else variable.op.name
        shape = list(part.full_shape) if part else variable.shape.as_list()
        wanted = f"{variable.dtype.base_dtype.name} {shape}"
        found = f"{dtypes[name].name} {list(shapes[name])}" if name in shapes else "not there"
        if found != wanted:
            raise UsageError(
                f"checkpoint {checkpoint} is of another model: variable {name} is {found}, and {wanted} in the model; "
                "give the --model that it was written with"
            )
