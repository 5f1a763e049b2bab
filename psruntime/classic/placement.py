"""Where the operations of a user's graph run: the checks, and what a session on a view needs beyond stock's.

With a stock server, an operation without a job runs on the worker that opened the session.  In a session whose
cluster comes with its configuration TensorFlow puts it on ps 0 instead: a dataset's iterator, for example, or the
files of a Saver.  So these operations get this worker's device before the first session.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.graph.base.graphs import uses_of

_SAVES = ("SaveV2", "SaveSlices", "Save")
_UPDATE = re.compile(r"(Resource)?((Sparse)?Apply[A-Z]|Scatter)|Assign(Add|Sub)")  # not a plain assignment


@contextmanager
def outside_scopes() -> Iterator[None]:
    """Operations made inside are in no device, name or control scope of the user's."""
    with tf1.device(None), tf1.control_dependencies(None), tf1.get_default_graph().name_scope(None):
        yield


def check_placement(graph: Any, num_ps: int, index: int) -> None:
    """Checks that the graph is for `num_ps` ps and worker `index`, and its global variables are on the ps.

    A worker may have copies of them, as one of reinforcement learning has: variables that the script puts on it by
    name, and only ever assigns.

    Raises:
        UsageError: it is not; the message names the operation.
    """
    for operation in graph.get_operations():
        spec = _spec(operation.device)
        if spec.job == "ps" and (spec.task or 0) >= num_ps:
            raise UsageError(
                f"'{operation.name}' is on ps {spec.task}, but the job has {num_ps} ps, from 0: the script's cluster "
                "and --ps of ps 0 must agree"
            )
        if spec.job == "worker" and spec.task not in (None, index):
            raise UsageError(
                f"'{operation.name}' is built for worker {spec.task}, but index is {index}; give replica_device_setter "
                f"worker_device='/job:worker/task:{index}'"
            )
        if spec.job not in ("ps", "worker", None):
            raise UsageError(f"'{operation.name}' is placed on job '{spec.job}'; a job has ps and workers")
    for variable in tf1.global_variables():
        if _spec(variable.device).job != "ps" and not _is_copy(graph, variable, index):
            raise UsageError(
                f"variable '{variable.op.name}' is not on a ps, so the workers would not share it; build the graph "
                "under tf.device(tf.train.replica_device_setter(...)), or give it the collection LOCAL_VARIABLES"
            )


def _is_copy(graph: Any, variable: Any, index: int) -> bool:
    spec = _spec(variable.device)
    if spec.job != "worker" or spec.task != index:
        return False
    uses = uses_of(graph.get_operation_by_name(variable.op.name).outputs[0])
    return not any(_UPDATE.match(use.kind) for use in uses)


def variables_of(ps: int) -> list[Any]:
    """The global variables of the default graph that are on this ps."""
    return [v for v in tf1.global_variables() if ps_of(v) == ps]


def ps_of(placed: Any) -> int | None:
    """The ps that a variable or an operation is on; None: another process."""
    spec = _spec(placed.device)
    return spec.task or 0 if spec.job == "ps" else None


def marker_of(num_ps: int) -> int:
    """Fingerprint of the global variables of the default graph and where they are: a positive int64."""
    facts = [
        [(v.op.name, str(v.shape), v.dtype.base_dtype.name) for v in sorted(variables_of(ps), key=lambda v: v.op.name)]
        for ps in range(num_ps)
    ]
    return int(hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:15], 16) | 1


def place_rest(graph: Any, index: int) -> int:
    """Gives each operation without a job to worker `index`; returns how many.

    Those that use a variable or belong to another operation go where that is.
    """
    placed = 0
    for operation in graph.get_operations():
        spec = _spec(operation.device)
        if spec.job is None and not _follows(operation):
            operation._set_device(spec.replace(job="worker", task=index).to_string())
            placed += 1
    return placed


def _follows(operation: Any) -> bool:
    is_save = operation.type in _SAVES  # which takes values, also of variables of the old kind
    if not is_save and any(t.dtype == tf1.resource or t.dtype._is_ref_dtype for t in operation.inputs):
        return True
    own = f"loc:@{operation.name}".encode()
    return any(group != own for group in operation.colocation_groups())


@cache
def _spec(device: str) -> Any:
    return tf1.DeviceSpec.from_string(device)
