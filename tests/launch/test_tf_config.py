"""TF_CONFIG: what it says, and one line for each mistake in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from psruntime.errors import UsageError
from psruntime.launch.cluster_task import ClusterTask
from psruntime.launch.tf_config import read_tf_config

ONE_LINE = r"(?s)^[^\n]*$"
CLUSTER = {"chief": ["a:2222"], "ps": ["b:2222", "c:2222"], "worker": ["d:2222", "e:2222"], "evaluator": ["f:2222"]}


def read(cluster: Any, kind: str = "worker", index: Any = 0, **more: Any) -> ClusterTask:
    return read_tf_config(json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}, **more}))


def test_the_chief_is_worker_0_and_the_others_move_up_by_one() -> None:
    chief = read(CLUSTER, "chief")
    assert (chief.role, chief.index, chief.host, chief.port) == ("worker", 0, "a", 2222)
    last = read(CLUSTER, "worker", 1)
    assert (last.role, last.index, last.host, last.port) == ("worker", 2, "e", 2222)
    assert chief.workers == last.workers == {0: "a:2222", 1: "d:2222", 2: "e:2222"}
    assert read({**CLUSTER, "chief": []}, "worker", 1).index == 1


def test_the_coordinator_has_the_address_of_ps_0_whose_server_takes_any_port() -> None:
    first, second = read(CLUSTER, "ps", 0), read(CLUSTER, "ps", 1)
    assert first.coordinator == second.coordinator == "b:2222"
    assert (first.host, first.port) == ("b", 0)
    assert (second.host, second.port) == ("c", 2222)


def test_the_evaluator_is_no_part_of_the_training_cluster() -> None:
    evaluator = read(CLUSTER, "evaluator")
    assert (evaluator.role, evaluator.host, evaluator.port) == ("evaluator", "", 0)
    assert "f:2222" not in {*evaluator.ps.values(), *evaluator.workers.values()}
    without = {role: addresses for role, addresses in CLUSTER.items() if role != "evaluator"}
    assert read(without, "evaluator").role == "evaluator"


def test_a_sparse_cluster_has_only_what_this_task_needs() -> None:
    task = read({"ps": {"0": "b:2222"}, "worker": {"7": "d:2222"}}, "worker", 7)
    assert (task.index, task.host, task.coordinator) == (7, "d", "b:2222")
    assert (task.all_ps, task.all_workers) == (False, False)
    some = read({"ps": ["b:2222", "c:2222"], "worker": {"7": "d:2222"}}, "worker", 7)
    assert (some.all_ps, some.all_workers) == (True, False)
    assert read({"chief": ["a:2222"], "ps": ["b:2222"], "worker": {"3": "d:2222"}}, "worker", 3).index == 4
    assert read(CLUSTER).all_ps and read(CLUSTER).all_workers
    operators = {"sparseCluster": {"ps": ["b:1"], "worker": {"2": "c:1"}}, "task": {"type": "worker", "index": 2}}
    assert read_tf_config(json.dumps(operators)).index == 2


def test_the_workers_of_a_host_are_numbered_in_their_order() -> None:
    cluster = {"chief": ["a:1"], "ps": ["a:2", "b:1"], "worker": ["b:2", "a:3", "[::1]:1", "a:4", "[::1]:2"]}
    assert read(cluster, "chief").local_rank == 0
    assert [read(cluster, "worker", index).local_rank for index in range(5)] == [0, 1, 0, 2, 1]
    assert read(cluster, "ps", 1).local_rank is read(cluster, "evaluator").local_rank is None


def test_a_sparse_cluster_does_not_say_which_workers_a_host_has() -> None:
    sparse = read({"ps": ["b:1"], "worker": {"0": "a:1", "7": "a:2"}}, "worker", 7)
    assert sparse.local_rank is None
    assert ClusterTask("none", "worker", 1, {0: "b:1"}, {0: "a:1"}).local_rank is None, "not where it is itself"


def test_names_of_older_programs_and_of_others_are_understood() -> None:
    assert read({"master": ["a:1"], "ps": ["b:1"]}, "master").role == "worker"
    assert read(CLUSTER, "ps", "1", environment="cloud", rpc_layer="grpc").index == 1
    assert read_tf_config(json.dumps({"cluster": CLUSTER, "task": {"type": "chief"}})).index == 0
    assert read({"ps": ["[::1]:2222"], "worker": ["[fe80::2%eth0]:0"]}).host == "[fe80::2%eth0]"


def test_without_ps_each_worker_has_one_beside_it() -> None:
    config = {"cluster": {"chief": ["a:1"], "worker": ["b:2"]}, "task": {"type": "worker", "index": 0}}
    task = read_tf_config(json.dumps(config), colocate_ps=True)
    assert (task.role, task.index, task.coordinator) == ("worker", 1, "a:1")
    assert dict(task.ps) == {0: "a:1", 1: "b:0"} and dict(task.workers) == {0: "a:0", 1: "b:0"}
    sparse = {"cluster": {"worker": {"1": "b:2"}}, "task": {"type": "worker", "index": 1}}
    with pytest.raises(UsageError, match=r"^TF_CONFIG: the address of worker 0 is missing, which is"):
        read_tf_config(json.dumps(sparse), colocate_ps=True)
    both = {"cluster": CLUSTER, "task": {"type": "worker", "index": 0}}
    with pytest.raises(UsageError, match=r"^TF_CONFIG: cluster.ps has 2 ps, and colocated ones are asked for"):
        read_tf_config(json.dumps(both), colocate_ps=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{'cluster': {}}", "TF_CONFIG is not JSON (Expecting property name enclosed in double quotes: "),
        ("[" * 100_000, "TF_CONFIG is not JSON (maximum recursion depth exceeded"),
        ("[]", "TF_CONFIG: cluster is missing; expected a text like {"),
        ('{"cluster": ["a:1"]}', 'TF_CONFIG: cluster must be an object, got ["a:1"]'),
        ('{"cluster": {"ps": ["a:1"]}}', "TF_CONFIG: task is missing; expected a text like {"),
    ],
)
def test_a_text_of_another_form_is_one_line(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=ONE_LINE) as error:
        read_tf_config(text)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("cluster", "kind", "index", "said"),
    [
        (CLUSTER, None, 0, "task.type is missing; expected one of chief, ps, worker, evaluator"),
        (CLUSTER, "boss", 0, 'task.type is the unknown role "boss"; expected one of chief, ps, worker, evaluator'),
        (CLUSTER, ["ps"], 0, 'task.type is the unknown role ["ps"]; expected one of chief, ps, worker, evaluator'),
        (CLUSTER, "evaluator", 1, "task is evaluator 1, and cluster.evaluator has only 0"),
        (CLUSTER, "worker", "9" * 5000, "task.index must be a number from 0, got"),
        ({**CLUSTER, "master": ["z:1"]}, "worker", 0, "cluster has a chief and a master, which are the same role; "),
        ({**CLUSTER, "ps": {"0": "b:1", "00": "c:1"}}, "worker", 0, "cluster.ps has an index twice, got {"),
        ({**CLUSTER, "chief": {"1": "a:1"}}, "worker", 0, 'cluster.chief must be one address, with index 0, got {"1"'),
        ({**CLUSTER, "ps": ["b:0"]}, "worker", 0, "ps 0 needs a port, which is the coordinator's, got b:0"),
        ({**CLUSTER, "ps": ["grpc://b:1"]}, "worker", 0, "cluster.ps[0]: address 'grpc://b:1' is not host:port"),
        (CLUSTER, "worker", "one", 'task.index must be a number from 0, got "one"'),
        (CLUSTER, "worker", -1, "task.index must be a number from 0, got -1"),
        (CLUSTER, "worker", True, "task.index must be a number from 0, got true"),
        (CLUSTER, "worker", 2, "task is worker 2, and cluster.worker has only 0, 1"),
        ({"ps": ["a:1"]}, "worker", 0, "task is worker 0, and cluster.worker is missing"),
        ({"worker": ["a:1"]}, "worker", 0, "cluster.ps is missing; expected the addresses of the ps, one at least"),
        ({"ps": [], "worker": ["a:1"]}, "worker", 0, "cluster.ps is missing; expected the addresses"),
        ({"ps": {"1": "b:1"}, "worker": ["a:1"]}, "worker", 0, "the address of ps 0 is missing, which is"),
        ({**CLUSTER, "helper": ["g:1"]}, "worker", 0, 'cluster has the unknown role "helper"; expected one of chief, '),
        ({**CLUSTER, "ps": "b:2222"}, "worker", 0, "cluster.ps must be a list of addresses, or a dict from index to "),
        ({**CLUSTER, "ps": {"x": "b:1"}}, "worker", 0, "cluster.ps must be a list of addresses, or a dict from "),
        ({**CLUSTER, "ps": [2222]}, "worker", 0, "cluster.ps[0] must be a text host:port, got 2222"),
        ({**CLUSTER, "ps": ["b"]}, "worker", 0, "cluster.ps[0]: address 'b' is not host:port"),
        ({**CLUSTER, "chief": ["a:1", "b:1"]}, "worker", 0, "cluster.chief must be one address, with index 0, got "),
        ({**CLUSTER, "ps": ["d:2222"]}, "worker", 0, "ps 0 and worker 1 have the same address d:2222"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_the_key_the_value_and_what_was_expected(
    cluster: Any, kind: Any, index: Any, said: str
) -> None:
    with pytest.raises(UsageError, match=ONE_LINE) as error:
        read(cluster, kind, index)
    assert str(error.value).startswith(f"TF_CONFIG: {said}")
