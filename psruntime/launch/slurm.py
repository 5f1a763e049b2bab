"""A step of Slurm: the first tasks are the ps, the others the workers.

As in tf.distribute's SlurmClusterResolver, tasks are assigned to the nodes in blocks, and roles to the tasks in order.
The order is that of Slurm's own list, in which the tasks are numbered; the resolver sorts the nodes by their names, so
with nodes n2 and n10 it gives the tasks of one the addresses of the other.  Only the port of the coordinator has to be
fixed: it is computed from the job's id, so two jobs can share a node.  All other processes listen at any free port.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from psruntime.errors import UsageError
from psruntime.launch.cluster_task import PS, WORKER, ClusterTask, with_colocated_ps

NAME = "Slurm"
RANK = "SLURM_PROCID"
NODES, TASKS = "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"
FIRST_PORT, PORTS = 10_000, 20_000  # below those that Linux gives to outgoing connections
_PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")  # of a list of nodes, between commas that are in no brackets
_RANGES = re.compile(r"\[([^\]]*)\]")
_TASKS = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_NUMBER = re.compile(r"[0-9]{1,18}")


def read_slurm(environment: Mapping[str, str], ps: int | None, port: int = 0) -> ClusterTask:
    """The task of this process in the step that it runs in.

    ps: how many of the step's tasks are ps; None: each task is a worker that has a ps of its own.  port: of the
    coordinator; 0: one that is computed from the job's id.

    Raises:
        UsageError: a variable is missing or malformed, there are too few tasks, or they are not assigned in blocks.
    """
    if ps is not None and ps < 1:
        raise UsageError(f"{NAME}: --ps must be at least 1, got {ps}")
    rank = int(_number(environment, RANK))
    hosts = nodes_of(_variable(environment, NODES))
    tasks = tasks_per_node(_variable(environment, TASKS))
    if len(hosts) != len(tasks):
        raise UsageError(f"{NAME}: {NODES} has {len(hosts)} nodes, {TASKS} has {len(tasks)}")
    host_of = [host for host, count in zip(hosts, tasks, strict=True) for _ in range(count)]
    if ps is not None and ps >= len(host_of):
        raise UsageError(f"{NAME}: the step has {len(host_of)} tasks, and --ps {ps} leaves none for a worker")
    if rank >= len(host_of):
        raise UsageError(f"{NAME}: {RANK} is {rank}, and the step has {len(host_of)} tasks")
    _require_blocks(environment, rank, host_of)
    port = port or FIRST_PORT + int(_number(environment, "SLURM_JOB_ID")) % PORTS
    addresses = [f"{host}:{0 if number else port}" for number, host in enumerate(host_of)]
    if ps is None:
        return with_colocated_ps(NAME, WORKER, rank, dict(enumerate(addresses)))
    role, index = (PS, rank) if rank < ps else (WORKER, rank - ps)
    return ClusterTask(NAME, role, index, dict(enumerate(addresses[:ps])), dict(enumerate(addresses[ps:])))


def nodes_of(text: str) -> list[str]:
    """`n[1-2,7],m5` -> n1, n2, n7, m5: the names of Slurm's form, in their order."""
    names = [name for part in _PART.findall(text) for name in _expanded(part)]
    if not names or ",".join(_PART.findall(text)) != text:
        raise UsageError(f"{NAME}: {NODES} is no list of nodes: '{text}'")
    return names


def _expanded(part: str) -> Iterator[str]:
    """All names that `rack[1-2]n[01-04]` stands for."""
    split = _RANGES.split(part)  # text, ranges, text, ...
    choices = [[each] if number % 2 == 0 else list(_numbers(each)) for number, each in enumerate(split)]
    return ("".join(chosen) for chosen in itertools.product(*choices))


def _numbers(ranges: str) -> Iterator[str]:
    for each in ranges.split(","):
        first, dash, last = each.partition("-")
        if not dash:
            last = first
        if not _NUMBER.fullmatch(first) or not _NUMBER.fullmatch(last) or int(first) > int(last):
            raise UsageError(f"{NAME}: {NODES} has a range that is none: '[{ranges}]'")
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


def tasks_per_node(text: str) -> list[int]:
    """`3(x2),1` -> 3, 3, 1."""
    found: list[int] = []
    for each in text.split(","):
        match = _TASKS.fullmatch(each)
        if not match:
            raise UsageError(f"{NAME}: {TASKS} is no list of numbers: '{text}'")
        found += [int(match[1])] * int(match[2] or 1)
    return found


def _variable(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise UsageError(f"{NAME}: {name} is not set; start the tasks by srun")
    return value


def _number(environment: Mapping[str, str], name: str) -> str:
    value = _variable(environment, name)
    if not _NUMBER.fullmatch(value):
        raise UsageError(f"{NAME}: {name} must be a number, got '{value}'")
    return value


def _require_blocks(environment: Mapping[str, str], rank: int, host_of: list[str]) -> None:
    here = environment.get("SLURMD_NODENAME", host_of[rank])
    if here != host_of[rank]:
        raise UsageError(
            f"{NAME}: task {rank} runs on {here}, and in blocks it would run on {host_of[rank]}; start the tasks by "
            "srun --distribution=block"
        )
