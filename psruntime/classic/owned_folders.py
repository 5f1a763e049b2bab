"""The folders that a script saves in, each of which belongs to one job (graph/checkpoint/owner.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.config.values import whole_path
from psruntime.core.members.messages import Assignment, Instructions
from psruntime.graph.checkpoint.listing import is_remote
from psruntime.graph.checkpoint.owner import FolderOwner


class OwnedFolders(tf1.train.CheckpointSaverListener):  # type: ignore[misc]
    """The marks of this process in `folders`; as a listener of their hooks it lets none save in another job's.

    A folder that only TensorFlow reaches (`gs://...`) has no mark, nor has one that the script saves in without a
    CheckpointSaverHook: nothing is known of that.
    """

    def __init__(self, folders: Iterable[str], job: JobConfig, coordinator: str, log: Callable[..., None]) -> None:
        paths = dict.fromkeys(whole_path(folder) for folder in folders if folder)
        self._owners = [
            FolderOwner(path, job.job_id, coordinator, job.lease_s, log) for path in paths if not is_remote(path)
        ]

    def claim(self, assignment: Assignment, look: Callable[[], None]) -> None:
        """As FolderOwner.claim, for the view of the assignment."""
        for owner in self._owners:
            owner.claim([ps.address for ps in assignment.view.ps], look, begins=assignment.seen_step == 0)

    def keep(self, instructions: Callable[[], Instructions]) -> None:
        """As FolderOwner.keep."""
        for owner in self._owners:
            owner.keep(instructions)

    def before_save(self, session: Any, global_step_value: int) -> None:  # noqa: ARG002
        for owner in self._owners:
            owner.require_now()

    def end_membership(self, is_over: bool) -> None:
        """is_over: whether the job has ended, else only this process has left it."""
        for owner in self._owners:
            owner.release() if is_over else owner.stop()
