"""Chooses the cluster source: flags go over TF_CONFIG, which goes over Slurm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from psruntime.config.process import PORT, split_address
from psruntime.config.settings import check_values, setting
from psruntime.errors import UsageError
from psruntime.launch import slurm, tf_config
from psruntime.launch.cluster_task import PS, WORKER, ClusterTask, require_address, with_colocated_ps

NAME = "--ps-hosts and --worker-hosts"


def read_host_lists(
    ps_hosts: str,
    worker_hosts: str,
    role: str,
    index: int | None,
    is_own: Callable[[str], bool],
    colocate_ps: bool = False,
) -> ClusterTask:
    """The task of this process; with neither role nor index the only address whose host is this machine.

    role: ps or worker, or empty.  is_own: whether a host is this machine.  colocate_ps: whether each worker has a ps of
    its own; then there is no list of ps.

    Raises:
        UsageError: an address is malformed, the task is not in the lists, or it is ambiguous.
    """
    if colocate_ps and ps_hosts:
        raise UsageError("--ps-hosts names ps, and colocated ones are asked for (--colocate-ps); leave out either")
    lists = {WORKER: _split("--worker-hosts", worker_hosts)}
    if not colocate_ps:
        lists = {PS: _split("--ps-hosts", ps_hosts), **lists}
    elif role == PS:
        raise UsageError("--role is ps, and with --colocate-ps every task is a worker")
    elif index is not None:
        role = WORKER
    if role or index is not None:
        if not role or index is None:
            raise UsageError("--role and --index belong together")
        if index not in lists[role]:
            raise UsageError(f"--index {index} is not in --{role}-hosts, which has {len(lists[role])}")
    else:
        role, index = _find(lists, is_own)
    if colocate_ps:
        return with_colocated_ps("--worker-hosts", role, index, lists[WORKER])
    return ClusterTask(NAME, role, index, lists[PS], lists[WORKER])


def _split(flag: str, text: str) -> dict[int, str]:
    if not text:
        raise UsageError(
            f"{flag} is missing: --ps-hosts and --worker-hosts belong together, unless --colocate-ps is given"
        )
    found = dict(enumerate(text.split(",")))
    for address in found.values():
        try:
            require_address(address)
        except UsageError as error:
            raise UsageError(f"{flag}: {error}") from error
    return found


def _find(lists: dict[str, dict[int, str]], is_own: Callable[[str], bool]) -> tuple[str, int]:
    hosts = {split_address(address)[0] for each in lists.values() for address in each.values()}
    own = {host for host in hosts if is_own(host)}
    here = [
        (role, index)
        for role, each in lists.items()
        for index, address in each.items()
        if split_address(address)[0] in own
    ]
    if len(here) == 1:
        return here[0]
    if not here:
        raise UsageError(
            f"none of the hosts {', '.join(sorted(hosts))} is this machine, or its name is not known yet; give "
            "--role and --index"
        )
    names = ", ".join(f"{role} {index}" for role, index in here)
    raise UsageError(f"{names} are on this machine, give --role and --index of this process")


@dataclass(frozen=True)
class ClusterConfig:
    """A task's flags about its cluster.

    Raises:
        UsageError: a value is out of range.
    """

    ps_hosts: str = setting(
        "network", "", "address of each ps, with commas; ps 0's is the coordinator's", metavar="HOST:PORT,..."
    )
    worker_hosts: str = setting(
        "network", "", "address of each worker, with commas; port 0 is any free one", metavar="HOST:PORT,..."
    )
    role: str = setting(
        "job", "", "with --ps-hosts: which of them this process is", metavar="{ps,worker}",
        default_is="the one whose host is this machine",
    )  # fmt: skip
    index: int | None = setting("job", None, "with --role: its index in that list, from 0", least=0)
    coordinator_port: int = setting(
        "network", 0, "under Slurm: port of the coordinator", default_is="made of the job's id", **PORT
    )

    def __post_init__(self) -> None:
        if self.role not in ("", PS, WORKER):
            raise UsageError(f"role must be ps or worker, got '{self.role}'")
        check_values(self)


def find_task(
    config: ClusterConfig,
    environment: Mapping[str, str],
    ps: int,
    is_own: Callable[[str], bool],
    colocate_ps: bool = False,
) -> ClusterTask:
    """Which task of which cluster this process is.

    ps: how many ps there shall be, where the source leaves that open (Slurm).  is_own: whether a host is this machine.
    colocate_ps: whether each worker shall have a ps of its own beside it, instead of others.

    Raises:
        UsageError: there is no source, two contradict each other, or the source is malformed.
    """
    if config.ps_hosts or config.worker_hosts:
        task = read_host_lists(config.ps_hosts, config.worker_hosts, config.role, config.index, is_own, colocate_ps)
    elif config.role or config.index is not None:
        raise UsageError("--role and --index need --ps-hosts and --worker-hosts; TF_CONFIG and Slurm have them already")
    elif tf_config.is_given(environment):
        task = tf_config.read_tf_config(environment[tf_config.NAME], colocate_ps)
    elif slurm.RANK in environment:
        return slurm.read_slurm(environment, None if colocate_ps else ps, config.coordinator_port)
    else:
        raise UsageError(
            "unknown which task this is: set TF_CONFIG, start it by srun, or give --ps-hosts and --worker-hosts"
        )
    if config.coordinator_port:
        raise UsageError(f"--coordinator-port is for Slurm; {task.source} has the address of the coordinator")
    return task
