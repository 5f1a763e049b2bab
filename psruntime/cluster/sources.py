"""Chooses the cluster source: flags go over TF_CONFIG, which goes over Slurm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from psruntime.cluster import slurm, tf_config
from psruntime.cluster.cluster_task import PS, WORKER, ClusterTask
from psruntime.cluster.host_lists import read_host_lists
from psruntime.config.process import PORT
from psruntime.config.settings import check_values, setting
from psruntime.errors import UsageError


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
