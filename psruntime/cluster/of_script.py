"""The task of a script that was started with TF_CONFIG in its environment."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from psruntime.cluster.cluster_task import WORKER, ClusterTask
from psruntime.cluster.tf_config import NAME, is_given, read_tf_config
from psruntime.config.process import DEFAULT_COORDINATOR
from psruntime.errors import UsageError


def cluster_task(colocate_ps: bool = False) -> ClusterTask | None:
    """Reads from `TF_CONFIG` which task of which cluster this process is.

    Build the graph with the result: `task.index` for the `worker_device` of `replica_device_setter`, and
    `len(task.ps)` for its `ps_tasks`. The chief of the cluster is worker 0, and the other workers move up by one.

    Args:
        colocate_ps: Whether each worker has a ps of its own beside it, for a cluster without ps; the session is given
            the same.

    Returns:
        `role` ("ps", "worker" or "evaluator"), `index`, and the addresses `ps` and `workers` by index, of which a
        sparse cluster may lack some. None without `TF_CONFIG`.

    Raises:
        SystemExit: `TF_CONFIG` is malformed. One line on stderr reports how, and the code is 2.
    """
    try:
        return _own_task(colocate_ps)
    except UsageError as error:
        sys.stderr.write(f"psruntime.cluster_task: {error}\n")
        raise SystemExit(error.exit_code) from error


@dataclass(frozen=True)
class ScriptPlace:
    """The place of a script in its cluster.  task: that of TF_CONFIG; all tasks of its cluster wait for each other."""

    coordinator: str
    index: int
    host: str
    task: ClusterTask | None = None


def place_of_script(coordinator: str, index: int | None, host: str, colocate_ps: bool = False) -> ScriptPlace:
    """The place of a script by its arguments; those that it leaves open are from TF_CONFIG.

    Raises:
        UsageError: neither has the index, TF_CONFIG is malformed or has another one, or the task is no worker.
    """
    if coordinator and index is not None and not colocate_ps:
        return ScriptPlace(coordinator, index, host)
    task = _own_task(colocate_ps)
    if task is None and colocate_ps:
        raise UsageError(f"colocate_ps is for a script whose {NAME} has the other workers; set {NAME}")
    if task is None:
        if index is None:
            raise UsageError(f"index is missing: give the worker's index and the coordinator, or set {NAME}")
        return ScriptPlace(coordinator or DEFAULT_COORDINATOR, index, host)
    if task.role != WORKER:
        raise UsageError(
            f"{NAME}: this task is {task.role} {task.index}, and a script is a worker; start this task with "
            "`psruntime task`"
        )
    if index is not None and index != task.index:
        raise UsageError(
            f"index is {index}, and {NAME} has worker {task.index} (the chief is worker 0, the others move up by one)"
        )
    return ScriptPlace(coordinator or task.coordinator, task.index, host or task.host, task)


def _own_task(colocate_ps: bool) -> ClusterTask | None:
    return read_tf_config(os.environ[NAME], colocate_ps) if is_given(os.environ) else None
