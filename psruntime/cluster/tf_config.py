"""The environment variable TF_CONFIG, as TensorFlow's estimators, its strategies and Kubeflow's TFJob write it.

    {"cluster": {"chief": ["a:2222"], "ps": ["b:2222"], "worker": ["c:2222"]}, "task": {"type": "worker", "index": 0}}

The cluster is dense, a list of addresses for each role, or sparse, a dict from index to address that may leave some
out.  The chief is worker 0, and the others move up by one.  tf.distribute's TFConfigClusterResolver reads the same
form and reports no mistake: one would show as a job that waits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from psruntime.cluster.cluster_task import EVALUATOR, PS, WORKER, ClusterTask, require_address, with_colocated_ps
from psruntime.errors import UsageError

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
