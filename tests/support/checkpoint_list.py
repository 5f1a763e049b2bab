"""The list of a folder's checkpoints, cut to what a replay is to begin from."""

from __future__ import annotations

from pathlib import Path


def keep_from(folder: Path, step: int) -> None:
    """A replay begins at the oldest checkpoint of the list, which is one of this global step or later then.

    TensorFlow is imported here only: a module that is collected later may want it with another environment.
    """
    import tensorflow.compat.v1 as tf1

    from psruntime.graph.checkpoint.listing import CheckpointList, step_of

    kept = [path for path in CheckpointList(str(folder)).listed() if (step_of(path) or 0) >= step]
    tf1.train.update_checkpoint_state(str(folder), kept[-1], kept)
