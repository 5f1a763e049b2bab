"""Writes a SavedModel: the serving graph with the values of a checkpoint."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import tensorflow.compat.v1 as tf1

from psruntime.errors import CheckpointError, PsRuntimeError, UsageError
from psruntime.faults import Place, fate_of
from psruntime.graph.base.errors import first_line
from psruntime.graph.base.literal_paths import readable
from psruntime.graph.base.types import Session
from psruntime.graph.checkpoint.listing import is_remote
from psruntime.graph.export.pruning import Pruned, prune_kernels
from psruntime.graph.export.serving_graph import DEFAULT, ServingGraph
from psruntime.graph.ops.checkpoint_fit import require_fit


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

    prune: the fraction of the entries of each kernel that become zero (pruning.py).

    Raises:
        CheckpointError: the checkpoint is damaged.
        UsageError: it is one of another model, or there is nothing to prune.
        OSError, OpError: the folder cannot be written.
    """
    config = tf1.ConfigProto(device_count={"GPU": 0})
    with serving.graph.as_default(), tf1.Session(config=config) as session:
        restore_model(session, checkpoint, serving.of_training)
        pruned = prune_kernels(session, serving.signatures[DEFAULT][1], prune) if prune else []
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
