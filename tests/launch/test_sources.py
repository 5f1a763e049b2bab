"""Which cluster source a task goes by, and the lists of hosts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from psruntime.errors import UsageError
from psruntime.launch.cluster_task import ClusterTask
from psruntime.launch.sources import ClusterConfig, find_task

HOSTS = {"ps_hosts": "a:2222", "worker_hosts": "b:0,c:2223"}
TF_CONFIG = json.dumps({"cluster": {"ps": ["d:1"], "worker": ["e:1"]}, "task": {"type": "ps", "index": 0}})
STEP = {
    "SLURM_PROCID": "1", "SLURM_STEP_NODELIST": "n1", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_JOB_ID": "5",
}  # fmt: skip


def find(
    environment: dict[str, str] | None = None, own: tuple[str, ...] = (), colocate_ps: bool = False, **config: Any
) -> ClusterTask:
    return find_task(ClusterConfig(**config), environment or {}, 1, own.__contains__, colocate_ps)


def test_flags_go_over_tf_config_and_that_over_slurm() -> None:
    everything = {"TF_CONFIG": TF_CONFIG, **STEP}
    assert find(everything, own=("c",), **HOSTS).workers == {0: "b:0", 1: "c:2223"}
    assert find(everything).coordinator == "d:1"
    assert find(STEP).workers == {0: "n1:0"}


def test_a_task_finds_itself_by_the_host_that_is_this_machine() -> None:
    task = find(own=("c",), **HOSTS)
    assert (task.role, task.index, task.port) == ("worker", 1, 2223)
    assert find(own=("a",), **HOSTS).role == "ps"


def test_role_and_index_say_which_of_several_is_meant() -> None:
    same = {"ps_hosts": "a:1", "worker_hosts": "a:2,a:3"}
    with pytest.raises(UsageError, match=r"^ps 0, worker 0, worker 1 are on this machine, give --role and --index of"):
        find(own=("a",), **same)
    task = find(role="worker", index=1, **same)
    assert (task.role, task.index, task.port) == ("worker", 1, 3)


def test_workers_on_a_host_of_the_lists_are_numbered_in_their_order() -> None:
    """Their ports may be any, as launch/ssh.sh has them."""
    ranks = [find(role="worker", index=n, ps_hosts="a:1", worker_hosts="a:0,b:0,a:0,b:0").local_rank for n in range(4)]
    assert ranks == [0, 0, 1, 1]
    beside = [find(index=n, worker_hosts="a:1,b:0,a:0", colocate_ps=True).local_rank for n in range(3)]
    assert beside == [0, 0, 1]
    assert find(role="ps", index=0, **HOSTS).local_rank is None


def test_every_source_can_have_a_ps_beside_each_worker() -> None:
    config = {"cluster": {"worker": ["b:1", "c:2"]}, "task": {"type": "worker", "index": 1}}
    step = {**STEP, "SLURM_STEP_NODELIST": "b,c", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    for task in (
        find({"TF_CONFIG": json.dumps(config)}, colocate_ps=True),
        find(own=("c",), worker_hosts="b:1,c:2", colocate_ps=True),
        find(worker_hosts="b:1,c:2", index=1, colocate_ps=True),
        find(step, coordinator_port=1, colocate_ps=True),
    ):
        assert (task.role, task.index, task.coordinator, task.host, task.port) == ("worker", 1, "b:1", "c", 0)
        assert task.colocated and task.all_ps and dict(task.ps) == {0: "b:1", 1: "c:0"}
        assert dict(task.workers) == {0: "b:0", 1: "c:0"}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "unknown which task this is: set TF_CONFIG, start it by srun, or give --ps-hosts and --worker-hosts"),
        ({"role": "ps", "index": 0}, "--role and --index need --ps-hosts and --worker-hosts; "),
        ({"ps_hosts": "a:1"}, "--worker-hosts is missing: --ps-hosts and --worker-hosts belong together"),
        ({"worker_hosts": "a:1"}, "--ps-hosts is missing: --ps-hosts and --worker-hosts belong together"),
        (HOSTS, "none of the hosts a, b, c is this machine, or its name is not known yet; give --role and --index"),
        ({**HOSTS, "role": "ps", "index": 0, "coordinator_port": 1}, "--coordinator-port is for Slurm; --ps"),
        ({**HOSTS, "role": "ps"}, "--role and --index belong together"),
        ({**HOSTS, "role": "ps", "index": 1}, "--index 1 is not in --ps-hosts, which has 1"),
        ({**HOSTS, "ps_hosts": "a:1, b:1"}, "--ps-hosts: address ' b:1' is not host:port, for example 127.0.0.1:2222"),
        ({**HOSTS, "ps_hosts": "::1:2222"}, "--ps-hosts: address '::1:2222' is not host:port"),
        ({**HOSTS, "ps_hosts": "a"}, "--ps-hosts: address 'a' is not host:port"),
        ({**HOSTS, "ps_hosts": "c:2223", "role": "ps", "index": 0}, "--ps-hosts and --worker-hosts: ps 0 and worker"),
        ({**HOSTS, "ps_hosts": "a:0", "role": "ps", "index": 0}, "--ps-hosts and --worker-hosts: ps 0 needs a port, "),
        ({**HOSTS, "colocate_ps": True}, "--ps-hosts names ps, and colocated ones are asked for (--colocate-ps)"),
        ({"worker_hosts": "a:1", "role": "ps", "colocate_ps": True}, "--role is ps, and with --colocate-ps every task"),
        ({"worker_hosts": "a:1,a:1", "index": 0, "colocate_ps": True}, "--worker-hosts: worker 0 and worker 1 have"),
        ({"worker_hosts": "a:0", "index": 0, "colocate_ps": True}, "--worker-hosts: worker 0 needs a port, which is "),
        ({"role": "chief"}, "role must be ps or worker, got 'chief'"),
        ({"index": -1}, "index must be at least 0, got -1"),
        ({"coordinator_port": 70000}, "coordinator_port must be from 0 to 65535, got 70000"),
    ],
)  # fmt: skip
def test_what_is_missing_or_contradicts_is_one_line(config: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        find(**config)
    assert str(error.value).startswith(said)
