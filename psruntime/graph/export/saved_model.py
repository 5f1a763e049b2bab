"""Writes a SavedModel of a checkpoint, with the smallest entries of its kernels pruned where the user asks for it.

A pruned entry is zero.  Han et al. 2015, "Learning both Weights and Connections for Efficient Neural Networks": entries
near zero matter least.  Zhu & Gupta 2017, "To prune, or not to prune", measure the same fraction in every layer, as is
done here.  Both continue to train afterwards; this is one shot without it, so the fraction that costs nothing is
smaller than theirs.

A kernel is a trainable variable that a matrix product or a convolution multiplies by.  Unchanged are biases, batch
norm, the kernels of depthwise convolutions, which have few entries, and tables, whose rows are looked up.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.errors import CheckpointError, PsRuntimeError, UsageError
from psruntime.faults import Place, fate_of, first_line
from psruntime.graph.base.checkpoint_reader import readable, require_fit
from psruntime.graph.base.graphs import ancestors
from psruntime.graph.base.types import Array, Op, Session, Tensor, Variable
from psruntime.graph.checkpoint.listing import is_remote
from psruntime.graph.export.serving_graph import DEFAULT, ServingGraph, parts_of

_PRODUCTS = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Conv2D", "Conv3D", "Conv2DBackpropInput",
             "Conv3DBackpropInputV2", "Einsum"}  # fmt: skip
# Operations between a kernel and its product: they pass it as it is, change shape or type, or join its parts.
_PASSING = {"ReadVariableOp", "Identity", "Cast", "Reshape", "ExpandDims", "Squeeze", "Transpose", "ConcatV2", "Enter"}


@dataclass(frozen=True)
class Pruned:
    """A kernel, by the name of its variable: the number of its entries, and of those that are zero now."""

    name: str
    entries: int
    zeros: int


def _prune_kernels(session: Session, outputs: Mapping[str, Tensor], fraction: float) -> list[Pruned]:
    """Sets the smallest entries of each kernel that the outputs depend on to zero, in the session.

    fraction: of the entries, above 0 and below 1; rounded down to whole entries of each kernel.

    Raises:
        UsageError: there is no kernel.
    """
    needed = ancestors(part for tensor in outputs.values() for part in parts_of(tensor))
    kernels = [variable for variable in tf1.trainable_variables() if _is_kernel(variable, needed)]
    if not kernels:
        raise UsageError("--prune: the predictions depend on no kernel, which a matrix product or convolution has")
    pruned = []
    for variable in kernels:
        values = without_smallest(session.run(variable.read_value()), fraction)
        variable.load(values, session)
        pruned.append(Pruned(variable.op.name, int(values.size), int(values.size - np.count_nonzero(values))))
    return pruned


def without_smallest(values: Array, fraction: float) -> Array:
    """The array with this fraction of its entries, those nearest to zero, set to zero; of equal ones any."""
    flat = np.array(values).reshape(-1)
    count = int(fraction * flat.size)
    if count:
        flat[np.argpartition(np.abs(flat), count - 1)[:count]] = 0
    return flat.reshape(np.shape(values))


def _is_kernel(variable: Variable, needed: set[Op]) -> bool:
    if not variable.dtype.is_floating or not variable.shape.rank or variable.shape.rank < 2:
        return False
    waiting, seen = [variable.op], set()
    while waiting:
        op = waiting.pop()
        for user in (user for tensor in op.outputs for user in tensor.consumers() if user in needed):
            if user.type in _PRODUCTS:
                return True
            if user.type in _PASSING and user not in seen:
                seen.add(user)
                waiting.append(user)
    return False


def require_new(folder: str) -> None:
    """Raises UsageError unless the folder can be made here."""
    if is_remote(folder):
        raise UsageError(f"--out {folder} is no folder of this machine; export to one, and copy it")
    if os.path.lexists(folder) and (os.path.islink(folder) or not os.path.isdir(folder) or os.listdir(folder)):
        raise UsageError(f"--out {folder} is there already; give one that is new or empty")


@contextmanager
def all_or_nothing(folder: str) -> Iterator[str]:
    """A temporary folder to fill, which becomes `folder` at the end; after an error there is none.

    Raises:
        UsageError, PassingError: the folder cannot be made.
    """
    parent = os.path.dirname(os.path.abspath(folder))
    with writing(folder):
        os.makedirs(parent, exist_ok=True)
        unfinished = tempfile.mkdtemp(prefix=f".{os.path.basename(folder)}-", dir=parent)
    try:
        filled = os.path.join(unfinished, "model")
        yield filled
        with writing(folder):
            if os.path.isdir(folder):
                os.rmdir(folder)
            os.rename(filled, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def writing(folder: str) -> Iterator[None]:
    """Raises a failure to write files as the error that the table of faults names; folder: as the user gave it."""
    try:
        yield
    except PsRuntimeError:
        raise
    except Exception as error:
        raise fate_of(error, Place.OUT, f"--out {folder} cannot be written: {first_line(error)}") from error


def write_saved_model(serving: ServingGraph, checkpoint: str, folder: str, prune: float | None = None) -> list[Pruned]:
    """Writes a SavedModel into a new folder.  Returns the kernels that it pruned.

    prune: the fraction of the entries of each kernel that become zero.

    Raises:
        CheckpointError: the checkpoint is damaged.
        UsageError: it is one of another model, or there is nothing to prune.
        OSError, OpError: the folder cannot be written.
    """
    config = tf1.ConfigProto(device_count={"GPU": 0})
    with serving.graph.as_default(), tf1.Session(config=config) as session:
        restore_model(session, checkpoint, serving.of_training)
        pruned = _prune_kernels(session, serving.signatures[DEFAULT][1], prune) if prune else []
        info = tf1.saved_model.build_tensor_info
        signatures = {
            name: tf1.saved_model.build_signature_def(
                {key: info(tensor) for key, tensor in given.items()},
                {key: info(tensor) for key, tensor in outputs.items()},
                tf1.saved_model.signature_constants.PREDICT_METHOD_NAME,
            )
            for name, (given, outputs) in serving.signatures.items()
        }
        for key in (tf1.saved_model.constants.MAIN_OP_KEY, tf1.saved_model.constants.ASSETS_KEY):
            serving.graph.clear_collection(key)  # of an earlier checkpoint that was removed meanwhile
        builder = tf1.saved_model.Builder(folder)
        builder.add_meta_graph_and_variables(
            session,
            [tf1.saved_model.tag_constants.SERVING],
            signatures,
            assets_collection=tf1.get_collection(tf1.GraphKeys.ASSET_FILEPATHS),  # files of vocabularies
            main_op=tf1.group(tf1.local_variables_initializer(), tf1.tables_initializer()),
            strip_default_attrs=True,
        )
        builder.save()
        return pruned


def restore_model(session: Session, checkpoint: str, of_training: Callable[[], Collection[str] | None]) -> None:
    """Assigns the variables of the current graph the values of a checkpoint.  of_training: as of `require_fit`.

    Raises:
        CheckpointError: the checkpoint is damaged.
        UsageError: it is one of another model.
    """
    variables = tf1.global_variables()
    if not variables:
        return
    try:
        require_fit(variables, checkpoint, of_training)
        tf1.train.Saver(variables).restore(session, readable(checkpoint))
    except (tf1.errors.OpError, OSError, ValueError) as error:
        raise CheckpointError(f"checkpoint {checkpoint}: {first_line(error)}") from error
