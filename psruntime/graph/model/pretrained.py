"""Initial values that model_fn reads from a checkpoint by `tf.train.init_from_checkpoint` or `tf.train.warm_start`.

TensorFlow replaces the initializer of a variable by an assignment to its handle.  The handle of a variable whose reads
are redirected is never initialised, and the ps need not see the file.  So a variable of a captured model notes where
its value is; the chief reads that in chunks and writes it to the ps (graph/recovery/warm_start.py).

The private functions of TensorFlow that this replaces are named here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf1
from tensorflow.python.training import checkpoint_utils, warm_starting_util

from psruntime.core.recovery.checkpoint_names import described
from psruntime.errors import UsageError
from psruntime.graph.base.checkpoint_reader import contents_of
from psruntime.graph.base.types import Variable
from psruntime.graph.embedding.dynamic_table import noted

_NOTES = "takes_pretrained_value"  # marks the variables of a captured model


@dataclass(frozen=True)
class Pretrained:
    """Where the initial value of a variable is.

    path: the checkpoint, as the prefix of its files.  tensor: its name there.
    slice_spec: which part of the tensor, in the form of `tf.raw_ops.RestoreV2`; empty for all of it.
    """

    path: str
    tensor: str
    slice_spec: str


def notes_pretrained(variable: Variable) -> None:
    """Makes init_from_checkpoint only note where the value of the variable is."""
    setattr(variable, _NOTES, True)


def pretrained_of(variable: Variable) -> Pretrained | None:
    """Where the initial value of a marked variable is, if it is in a checkpoint."""
    found: Pretrained | None = getattr(variable, "pretrained", None)
    return found


def _set_checkpoint_initializer(
    variable: Variable, ckpt_file: str, tensor_name: str, slice_spec: str, name: str = "checkpoint_initializer"
) -> None:
    """Replaces TensorFlow's function of this name for marked variables; for others it calls that."""
    if not getattr(variable, _NOTES, False):
        _original_set(variable, ckpt_file, tensor_name, slice_spec, name)
        return
    _require_fit(variable, ckpt_file, tensor_name, slice_spec)
    with tf1.control_dependencies(None), tf1.device("/cpu:0"):
        value = tf1.raw_ops.RestoreV2(
            prefix=ckpt_file,
            tensor_names=[tensor_name],
            shape_and_slices=[slice_spec],
            dtypes=[variable.dtype.base_dtype],
            name=name,
        )[0]
    value.set_shape(variable.shape)
    variable._initial_value = value
    variable.pretrained = Pretrained(ckpt_file, tensor_name, slice_spec)


def _require_fit(variable: Variable, path: str, tensor: str, slice_spec: str) -> None:
    """Raises UsageError if a variable cannot have this tensor as its initial value."""
    name = variable.op.name
    where = f"tf.train.init_from_checkpoint: variable {name} cannot begin with {tensor} of {path}"
    if name in noted():
        raise UsageError(f"{where}: it is a dynamic table; leave it out of the assignment map")
    if any(member is variable for member in tf1.get_collection(tf1.GraphKeys.GLOBAL_STEP)) or name == "global_step":
        raise UsageError(f"{where}: psruntime counts the global step from 0; leave it out of the assignment map")
    there = contents_of(path)
    if tensor not in there:
        raise UsageError(f"{where}: the checkpoint has no such tensor")
    part = variable._get_save_slice_info() if slice_spec else None
    expected = tuple(part.full_shape if part else variable.shape.as_list()), variable.dtype.base_dtype.name
    if there[tensor] != expected:
        raise UsageError(f"{where}: that is {described(there[tensor])}, and the variable is {described(expected)}")


def _infer_var_name(variables: list[Variable]) -> str:
    """Replaces TensorFlow's function of this name, which needs each variable to be read from its handle."""
    if not all(getattr(variable, _NOTES, False) for variable in variables):
        name: str = _original_infer(variables)
        return name
    names = {part.full_name if (part := v._get_save_slice_info()) else v.op.name for v in variables}
    if len(names) > 1:
        raise TypeError(f"tf.train.warm_start: {', '.join(sorted(names))} are not parts of one variable")
    return str(names.pop())


def _warm_start_var_with_vocab(var: Variable, *args: Any, **settings: Any) -> None:
    """Replaces TensorFlow's function of this name, which assigns."""
    variables = var if isinstance(var, list) else [var]
    if any(getattr(variable, _NOTES, False) for variable in variables):
        raise UsageError(
            f"tf.train.warm_start: a VocabInfo is not supported, which {_infer_var_name(variables)} has; write a "
            "checkpoint with its rows in the order of the new vocabulary, and give that with --warm-start"
        )
    _original_vocab(var, *args, **settings)


_original_set = checkpoint_utils._set_checkpoint_initializer
_original_infer = warm_starting_util._infer_var_name
_original_vocab = warm_starting_util._warm_start_var_with_vocab
checkpoint_utils._set_checkpoint_initializer = _set_checkpoint_initializer
warm_starting_util._infer_var_name = _infer_var_name
warm_starting_util._warm_start_var_with_vocab = _warm_start_var_with_vocab
