"""The environment variable TF_CONFIG, as TensorFlow's estimators, its strategies and Kubeflow's TFJob write it.

    {"cluster": {"chief": ["a:2222"], "ps": ["b:2222"], "worker": ["c:2222"]}, "task": {"type": "worker", "index": 0}}

The cluster is dense, a list of addresses for each role, or sparse, a dict from index to address that may leave some
out.  The chief is worker 0, and the others move up by one.  tf.distribute's TFConfigClusterResolver reads the same
form and complains of nothing: a mistake would show as a job that waits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from psruntime.cluster.cluster_task import EVALUATOR, PS, WORKER, ClusterTask
from psruntime.config import split_address
from psruntime.errors import UsageError

NAME = "TF_CONFIG"
CHIEF = "chief"
MASTER = "master"  # what the chief was called before TensorFlow 1.5
ROLES = (CHIEF, PS, WORKER, EVALUATOR)
_FORM = '{"cluster": {"ps": ["host:port"], "worker": ["host:port"]}, "task": {"type": "worker", "index": 0}}'


def read_tf_config(text: str) -> ClusterTask:
    """The task that TF_CONFIG says.

    Raises:
        UsageError: it is malformed or contradicts itself; names the key, its value and what was expected.
    """
    try:
        config = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{NAME} is not JSON ({error}); expected a text like {_FORM}") from error
    cluster = {_role(role): value for role, value in _object(config, "", "cluster").items()}
    task = _object(config, "", "task")
    addresses = {role: _addresses(role, value) for role, value in cluster.items()}
    role, index = _task(task)
    chiefs, workers = addresses.get(CHIEF, {}), addresses.get(WORKER, {})
    _check_chief(chiefs)
    if role != EVALUATOR and index not in addresses.get(role, {}):
        raise UsageError(f"{NAME}: task is {role} {index}, and {_known(role, addresses.get(role, {}))}")
    if not addresses.get(PS):
        raise UsageError(f"{NAME}: cluster.ps is missing; expected the addresses of the ps, one at least")
    first = len(chiefs)
    if role == WORKER:
        index += first
    return ClusterTask(
        NAME,
        WORKER if role == CHIEF else role,
        index,
        addresses[PS],
        {**chiefs, **{first + number: address for number, address in workers.items()}},
        complete=all(isinstance(cluster[role], list) for role in (PS, WORKER) if role in cluster),
    )


def _object(parent: Any, path: str, key: str) -> Mapping[str, Any]:
    """parent[key], which has to be an object."""
    value = parent.get(key) if isinstance(parent, dict) else None
    name = f"{path}.{key}" if path else key
    if value is None:
        raise UsageError(f"{NAME}: {name} is missing; expected a text like {_FORM}")
    if not isinstance(value, dict):
        raise UsageError(f"{NAME}: {name} must be an object, got {json.dumps(value)}")
    return value


def _role(role: str) -> str:
    if role == MASTER:
        return CHIEF
    if role not in ROLES:
        raise UsageError(f"{NAME}: cluster has an unknown role '{role}'; known are {', '.join(ROLES)}")
    return role


def _addresses(role: str, value: Any) -> dict[int, str]:
    """Index -> address; `value` is a list, or a dict with numbers as its keys."""
    key = f"cluster.{role}"
    if isinstance(value, list):
        found = dict(enumerate(value))
    elif isinstance(value, dict) and all(index.isdecimal() for index in value):
        found = {int(index): address for index, address in value.items()}
    else:
        raise UsageError(
            f"{NAME}: {key} must be a list of addresses, or a dict from index to address, got {json.dumps(value)}"
        )
    for index, address in found.items():
        if not isinstance(address, str):
            raise UsageError(f"{NAME}: {key}[{index}] must be a text host:port, got {json.dumps(address)}")
        try:
            split_address(address)
        except UsageError as error:
            raise UsageError(f"{NAME}: {key}[{index}]: {error}") from error
    return found


def _task(task: Mapping[str, Any]) -> tuple[str, int]:
    """(role, index).  The index is a number, also as a text; without one it is 0."""
    role, index = task.get("type"), task.get("index", 0)
    if role is None:
        raise UsageError(f"{NAME}: task.type is missing; expected one of {', '.join(ROLES)}")
    if role not in (*ROLES, MASTER):
        raise UsageError(f"{NAME}: task.type must be one of {', '.join(ROLES)}, got {json.dumps(role)}")
    if isinstance(index, bool) or not str(index).isdecimal():
        raise UsageError(f"{NAME}: task.index must be a number from 0, got {json.dumps(index)}")
    return _role(role), int(index)


def _check_chief(chiefs: Mapping[int, str]) -> None:
    if chiefs and list(chiefs) != [0]:
        raise UsageError(f"{NAME}: cluster.chief must be one address, got {json.dumps(list(chiefs.values()))}")


def _known(role: str, addresses: Mapping[int, str]) -> str:
    if not addresses:
        return f"cluster.{role} is missing"
    return f"cluster.{role} has only {', '.join(str(index) for index in sorted(addresses))}"
