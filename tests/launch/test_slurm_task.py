"""A Slurm step as a cluster source."""

from __future__ import annotations

import pytest

from psruntime.errors import UsageError
from psruntime.launch.slurm import FIRST_PORT, nodes_of, read_slurm, tasks_per_node
from psruntime.process.machine import VISIBLE, choose_gpu

STEP = {
    "SLURM_PROCID": "0",
    "SLURM_STEP_NODELIST": "n[2,10]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_JOB_ID": "40017",
}


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("login", ["login"]),
        ("n[1-2],m5,o[3-4,6]", ["n1", "n2", "m5", "o3", "o4", "o6"]),
        ("gpu[008-011]", ["gpu008", "gpu009", "gpu010", "gpu011"]),
        ("rack[1-2]n[01-02]", ["rack1n01", "rack1n02", "rack2n01", "rack2n02"]),
        ("a-[1]-b", ["a-1-b"]),
    ],
)
def test_a_list_of_nodes_is_written_out_in_its_order(text: str, nodes: list[str]) -> None:
    assert nodes_of(text) == nodes


@pytest.mark.parametrize("text", ["", "n[1-", "n[1-a]", "n[]", "n[3-1]", "a,,b", ",a", "n]1["])
def test_a_malformed_list_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="SLURM_STEP_NODELIST"):
        nodes_of(text)


def test_tasks_of_nodes_are_written_out() -> None:
    assert tasks_per_node("3(x2),1") == [3, 3, 1]
    with pytest.raises(UsageError, match="SLURM_STEP_TASKS_PER_NODE is no list of numbers: '3x2'"):
        tasks_per_node("3x2")


def test_the_first_tasks_are_the_ps() -> None:
    found = [read_slurm({**STEP, "SLURM_PROCID": str(rank)}, ps=2) for rank in range(4)]
    assert [(task.role, task.index) for task in found] == [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)]
    assert [task.host for task in found] == ["n2", "n2", "n10", "n10"], "in the order of the list, not of the names"
    assert {task.port for task in found} == {0}
    assert {task.coordinator for task in found} == {f"n2:{FIRST_PORT + 40017 % 20000}"}


def test_the_workers_of_a_node_are_numbered_without_its_ps() -> None:
    """So SLURM_LOCALID, which counts the ps too, is not what chooses a GPU."""
    step = {**STEP, "SLURM_STEP_TASKS_PER_NODE": "3(x2)"}
    found = [read_slurm({**step, "SLURM_PROCID": str(rank)}, ps=2) for rank in range(6)]
    assert [task.local_rank for task in found] == [None, None, 0, 0, 1, 2]
    beside = [read_slurm({**step, "SLURM_PROCID": str(rank)}, ps=None) for rank in range(6)]
    assert [task.local_rank for task in beside] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        (["0,1,2"] * 6, ["0", "0", "1", "2"]),  # --gpus-per-node
        (["0", "1", "2"] * 2, ["2", "0", "1", "2"]),  # --gpus-per-task, which binds
        (["0"] * 6, ["0"] * 4),  # the same where cgroups hide the others, and number each from 0
    ],
    ids=["of the node", "of the task", "of the task's cgroup"],
)
def test_a_worker_takes_a_gpu_of_those_that_slurm_lets_it_see(visible: list[str], chosen: list[str]) -> None:
    step = {**STEP, "SLURM_STEP_TASKS_PER_NODE": "3(x2)"}
    taken = []
    for rank in range(2, 6):
        environment = {**step, "SLURM_PROCID": str(rank), VISIBLE: visible[rank]}
        local_rank = read_slurm(environment, ps=2).local_rank
        assert local_rank is not None
        taken.append(choose_gpu(local_rank, environment, list))
        assert environment[VISIBLE] == taken[-1]
    assert taken == chosen


def test_two_jobs_on_a_node_have_coordinators_at_different_ports() -> None:
    other = read_slurm({**STEP, "SLURM_JOB_ID": "40018"}, ps=1)
    assert other.coordinator != read_slurm(STEP, ps=1).coordinator
    assert read_slurm(STEP, ps=1, port=2222).coordinator == "n2:2222"


@pytest.mark.parametrize(
    ("changed", "ps", "said"),
    [
        ({"SLURM_PROCID": ""}, 1, "SLURM_PROCID is not set; start the tasks by srun"),
        ({"SLURM_PROCID": "x"}, 1, "SLURM_PROCID must be a number, got 'x'"),
        ({"SLURM_PROCID": "4"}, 1, "SLURM_PROCID is 4, and the step has 4 tasks"),
        ({"SLURM_STEP_NODELIST": ""}, 1, "SLURM_STEP_NODELIST is not set; start the tasks by srun"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2"}, 1, "SLURM_STEP_NODELIST has 2 nodes, SLURM_STEP_TASKS_PER_NODE has 1"),
        ({}, 0, "--ps must be at least 1, got 0"),
        ({}, 4, "the step has 4 tasks, and --ps 4 leaves none for a worker"),
        (
            {"SLURM_PROCID": "1", "SLURMD_NODENAME": "n10"},
            1,
            "task 1 runs on n10, and in blocks it would run on n2; start the tasks by srun --distribution=block",
        ),
    ],
)
def test_what_is_wrong_with_a_step_is_one_line(changed: dict[str, str], ps: int, said: str) -> None:
    with pytest.raises(UsageError) as error:
        read_slurm({**STEP, **changed}, ps)
    assert str(error.value) == f"Slurm: {said}"
