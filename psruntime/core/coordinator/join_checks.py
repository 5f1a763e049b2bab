"""Admission: what a join must be, whether its index is free or not.  Pure checks."""

from __future__ import annotations

from psruntime.config import JobConfig
from psruntime.config.process import split_address
from psruntime.core.members.membership import Membership, Role
from psruntime.core.members.messages import Join
from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.plan.identity import ModelIdentity, differences
from psruntime.core.plan.plan import first_difference
from psruntime.errors import ModelDiffersError, OtherJobError, UsageError


def check_join(join: Join, job: JobConfig, members: Membership) -> None:
    """Checks a join against the job and the live members.

    Raises:
        OtherJobError: the process serves another job, whose coordinator was here before.
        UsageError: index out of range, malformed address, a loopback address among remote ones.
    """
    if join.job_id != job.job_id:
        raise OtherJobError(
            f"{join.role} {join.index} at {join.address} still serves job {join.job_id}, "
            f"this is the coordinator of job {job.job_id}: start {join.role} {join.index} anew"
        )
    limit, setting = (job.ps, "ps") if join.role is Role.PS else (job.max_workers, "max_workers")
    if not 0 <= join.index < limit:
        raise UsageError(f"{join.role} index {join.index} is out of range: the job has {setting} {limit}, from 0")
    for address in (join.address, join.health_address):
        split_address(address)
    for other in [*members.live(Role.PS), *members.live(Role.WORKER)]:
        if _is_loopback(other.address) != _is_loopback(join.address):
            raise UsageError(
                f"{join.role} {join.index} registers {join.address} but {other.name} is at {other.address}: loopback "
                "addresses reach one machine only; give --host with an address that the others reach"
            )


def check_model(join: Join, specs: tuple[VariableSpec, ...] | None, identity: ModelIdentity | None) -> None:
    """Checks a worker's model against the variables and the identity of the job's; each None while it is not known.

    Raises:
        ModelDiffersError: they differ; names the first difference, with both values.
    """
    what = f"worker {join.index} has another model than the job, first difference: "
    if specs is not None and (difference := first_difference(join.specs, specs)):
        raise ModelDiffersError(
            f"{what}{difference} (here: this worker, there: the job); start it with the job's model"
        )
    if identity is not None and (difference := next(differences(join.identity, identity, "the job"), None)):
        raise ModelDiffersError(f"{what}{difference}; start it with the job's model")


def _is_loopback(address: str) -> bool:
    host = split_address(address)[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")
