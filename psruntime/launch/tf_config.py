"""The environment variable TF_CONFIG, as TensorFlow's estimators, its strategies and Kubeflow's TFJob write it.

    {"cluster": {"chief": ["a:2222"], "ps": ["b:2222"], "worker": ["c:2222"]}, "task": {"type": "worker", "index": 0}}

The cluster is dense, a list of addresses for each role, or sparse, a dict from index to address that may leave some
out.  The chief is worker 0, and the others move up by one.  tf.distribute's TFConfigClusterResolver reads the same
form and reports no mistake: one would show as a job that waits.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psruntime.config.process import DEFAULT_COORDINATOR
from psruntime.errors import UsageError
from psruntime.launch.cluster_task import EVALUATOR, PS, WORKER, ClusterTask, require_address, with_colocated_ps

NAME = "TF_CONFIG"
CHIEF = "chief"
SPARSE = "sparseCluster"  # the name of a cluster with dynamic workers in Kubeflow's operator
MASTER = "master"  # the name of the chief before TensorFlow 1.5
ROLES = (CHIEF, PS, WORKER, EVALUATOR)
_INDEX = re.compile(r"[0-9]{1,6}")
_FORM = '{"cluster": {"ps": ["host:port"], "worker": ["host:port"]}, "task": {"type": "worker", "index": 0}}'


def read_tf_config(text: str, colocate_ps: bool = False) -> ClusterTask:
    """The task of TF_CONFIG.

    colocate_ps: whether each worker has a ps of its own; then the cluster has no others.

    Raises:
        UsageError: it is malformed or contradicts itself; names the key, its value and what was expected.
    """
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{NAME} is not JSON ({error}); expected a text like {_FORM}") from error
    sparse = isinstance(config, dict) and SPARSE in config and "cluster" not in config
    given = _object(config, SPARSE if sparse else "cluster")
    if CHIEF in given and MASTER in given:
        raise UsageError(f"{NAME}: cluster has a {CHIEF} and a {MASTER}, which are the same role; expected one of them")
    cluster = {_role("cluster has", role): value for role, value in given.items()}
    task = _object(config, "task")
    addresses = {role: _addresses(role, value) for role, value in cluster.items()}
    role, index = _task(task)
    chiefs, workers = addresses.get(CHIEF, {}), addresses.get(WORKER, {})
    _check_chief(chiefs)
    if (role != EVALUATOR or role in addresses) and index not in addresses.get(role, {}):
        raise UsageError(f"{NAME}: task is {role} {index}, and {_known(role, addresses.get(role, {}))}")
    first = len(chiefs)
    if role == WORKER:
        index += first
    role = WORKER if role == CHIEF else role
    workers = {**chiefs, **{first + number: address for number, address in workers.items()}}
    all_workers = isinstance(cluster.get(WORKER, []), list)
    ps = addresses.get(PS)
    if ps and colocate_ps:
        raise UsageError(f"{NAME}: cluster.ps has {len(ps)} ps, and colocated ones are asked for; leave out either")
    if colocate_ps:
        return with_colocated_ps(NAME, role, index, workers, all_workers)
    if not ps:
        raise UsageError(
            f"{NAME}: cluster.ps is missing; expected the addresses of the ps, one at least, or colocated ps, one "
            "beside each worker (--colocate-ps, in a script colocate_ps=True)"
        )
    return ClusterTask(NAME, role, index, ps, workers, isinstance(cluster[PS], list), all_workers)


def is_given(environment: Mapping[str, str]) -> bool:
    """Whether the variable has a cluster.  A single process is started with an empty object."""
    return "".join(environment.get(NAME, "").split()) not in ("", "{}")


def _object(config: Any, key: str) -> Mapping[str, Any]:
    """config[key], which has to be an object."""
    value = config.get(key) if isinstance(config, dict) else None
    if value is None:
        raise UsageError(f"{NAME}: {key} is missing; expected a text like {_FORM}")
    if not isinstance(value, dict):
        raise UsageError(f"{NAME}: {key} must be an object, got {json.dumps(value)}")
    return value


def _role(where: str, role: Any) -> str:
    if role == MASTER:
        return CHIEF
    if role not in ROLES:
        raise UsageError(f"{NAME}: {where} the unknown role {json.dumps(role)}; expected one of {', '.join(ROLES)}")
    return str(role)


def _addresses(role: str, value: Any) -> dict[int, str]:
    """Index -> address; `value` is a list, or a dict with numbers as its keys."""
    key = f"cluster.{role}"
    if isinstance(value, list):
        found = dict(enumerate(value))
    elif isinstance(value, dict) and all(_INDEX.fullmatch(index) for index in value):
        found = {int(index): address for index, address in value.items()}
        if len(found) < len(value):
            raise UsageError(f"{NAME}: {key} has an index twice, got {json.dumps(value)}")
    else:
        raise UsageError(
            f"{NAME}: {key} must be a list of addresses, or a dict from index to address, got {json.dumps(value)}"
        )
    for index, address in found.items():
        if not isinstance(address, str):
            raise UsageError(f"{NAME}: {key}[{index}] must be a text host:port, got {json.dumps(address)}")
        try:
            require_address(address)
        except UsageError as error:
            raise UsageError(f"{NAME}: {key}[{index}]: {error}") from error
    return found


def _task(task: Mapping[str, Any]) -> tuple[str, int]:
    """(role, index).  The index is a number, also as a text; without one it is 0."""
    role, index = task.get("type"), task.get("index", 0)
    if role is None:
        raise UsageError(f"{NAME}: task.type is missing; expected one of {', '.join(ROLES)}")
    if isinstance(index, bool) or not _INDEX.fullmatch(str(index)):
        raise UsageError(f"{NAME}: task.index must be a number from 0, got {json.dumps(index)}")
    return _role("task.type is", role), int(index)


def _check_chief(chiefs: Mapping[int, str]) -> None:
    if chiefs and list(chiefs) != [0]:
        raise UsageError(f"{NAME}: cluster.chief must be one address, with index 0, got {json.dumps(dict(chiefs))}")


def _known(role: str, addresses: Mapping[int, str]) -> str:
    if not addresses:
        return f"cluster.{role} is missing"
    return f"cluster.{role} has only {', '.join(str(index) for index in sorted(addresses))}"


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
