"""The flags --ps-hosts and --worker-hosts: addresses with commas, the same on every machine."""

from __future__ import annotations

from collections.abc import Callable

from psruntime.cluster.cluster_task import PS, WORKER, ClusterTask, require_address, with_colocated_ps
from psruntime.config.process import split_address
from psruntime.errors import UsageError

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
