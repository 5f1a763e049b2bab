"""One task of a cluster of fixed addresses: its role and index, and where the others are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psruntime.config import JobConfig
from psruntime.config.process import DEFAULT_COORDINATOR, split_address
from psruntime.errors import UsageError

_HOST = re.compile(r"\[[0-9A-Za-z:.%_-]+\]|[^\s:/\[\]]+")  # a name, an address, or one of IPv6 in brackets
PS, WORKER, EVALUATOR = "ps", "worker", "evaluator"


@dataclass(frozen=True)
class ClusterTask:
    """The result of a cluster source.

    source: its name, for messages.  role: ps, worker or evaluator.  index: of the process in its role; worker 0 is the
    chief of the cluster, where that has one.
    ps, workers: index -> `host:port`; port 0 stands for any.  The evaluator is in neither.
    all_ps, all_workers: whether these are all that there are; if not, the source may have some of them only.
    colocated: whether each worker has a ps of its own beside it, which has its index (`with_colocated_ps`).

    Raises:
        UsageError: there is no ps 0 or it has no port, or two tasks have the same address.
    """

    source: str
    role: str
    index: int
    ps: Mapping[int, str]
    workers: Mapping[int, str]
    all_ps: bool = True
    all_workers: bool = True
    colocated: bool = False

    def __post_init__(self) -> None:
        if 0 not in self.ps:
            raise UsageError(f"{self.source}: the address of ps 0 is missing, which is the coordinator's")
        if split_address(self.coordinator)[1] == 0:
            raise UsageError(f"{self.source}: ps 0 needs a port, which is the coordinator's, got {self.coordinator}")
        _require_distinct(self.source, {PS: self.ps, WORKER: self.workers})

    def job_settings(self) -> dict[str, Any]:
        """The settings of the job that follow from the cluster."""
        known: dict[str, Any] = {PS: len(self.ps)} if self.all_ps else {}
        if self.all_workers:
            known["min_workers"] = max(1, len(self.workers))
            if len(self.workers) > JobConfig.max_workers:
                known["max_workers"] = len(self.workers)
        return known

    @property
    def coordinator(self) -> str:
        """`host:port` of the coordinator, the cluster's address of ps 0."""
        return self.ps[0]

    @property
    def host(self) -> str:
        """The host at which the others reach this task; empty if the cluster does not have it."""
        address = self._own
        return split_address(address)[0] if address else ""

    @property
    def port(self) -> int:
        """That of TensorFlow's server; 0 for any, as on ps 0, whose port is the coordinator's."""
        if self.role == EVALUATOR or (self.role, self.index) == (PS, 0):
            return 0
        return split_address(self._own)[1]

    @property
    def local_rank(self) -> int | None:
        """Number of this worker among those of its host, from 0: how many of smaller index have the same host.

        None: this is no worker, or the cluster does not have the addresses of all workers.
        """
        if self.role != WORKER or not self._own or not self.all_workers:
            return None
        return sum(split_address(address)[0] == self.host for i, address in self.workers.items() if i < self.index)

    @property
    def _own(self) -> str:
        return {PS: self.ps, WORKER: self.workers}.get(self.role, {}).get(self.index, "")


def with_colocated_ps(
    source: str, role: str, index: int, workers: Mapping[int, str], all_workers: bool = True
) -> ClusterTask:
    """The task of a cluster of workers, each of which has a ps of its own beside it.

    The address of worker 0 is the coordinator's, which is in its ps; TensorFlow's servers take any port.

    Raises:
        UsageError: there is no worker 0 or it has no port, or two workers have the same address.
    """
    if 0 not in workers:
        raise UsageError(f"{source}: the address of worker 0 is missing, which is the coordinator's")
    if split_address(workers[0])[1] == 0:
        raise UsageError(f"{source}: worker 0 needs a port, which is the coordinator's, got {workers[0]}")
    _require_distinct(source, {WORKER: workers})
    any_port = {number: f"{split_address(address)[0]}:0" for number, address in workers.items()}
    return ClusterTask(
        source, role, index, {**any_port, 0: workers[0]}, any_port, all_workers, all_workers, colocated=True
    )


def _require_distinct(source: str, cluster: Mapping[str, Mapping[int, str]]) -> None:
    named = {f"{role} {index}": address for role, each in cluster.items() for index, address in each.items()}
    for address, count in Counter(named.values()).items():
        if count > 1 and split_address(address)[1]:
            twice = [name for name, each in named.items() if each == address]
            raise UsageError(f"{source}: {' and '.join(twice)} have the same address {address}")


def require_address(address: str) -> None:
    """Raises UsageError unless it is `host:port` with the name or the number of a machine."""
    host, _ = split_address(address)
    if not _HOST.fullmatch(host):
        raise UsageError(f"address {address!r} is not host:port, for example {DEFAULT_COORDINATOR}")
