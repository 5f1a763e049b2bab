"""Admission: what a join must be, whether its index is free or not, and who was refused."""

from __future__ import annotations

from collections.abc import Callable, Container

from psruntime.config import JobConfig
from psruntime.config.process import split_address
from psruntime.core.members.membership import Membership, Role
from psruntime.core.members.messages import Join
from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.plan.identity import PROTOCOL, SPEAKS, ModelIdentity, differences
from psruntime.core.plan.plan import first_difference
from psruntime.errors import ModelDiffersError, OtherJobError, UsageError

KEPT = 64  # indices; who asks for more of them is no cluster of ours
NAMED = 3  # in one line of the status


class RefusedJoins:
    """Processes of another job that asked to join this one, whose coordinator is where theirs was; and ps with other
    versions.

    Each is kept for the log and the status until a process of this job has its index.

    `note(name, **facts)` is called once for each index, however often it is asked for.
    """

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self._texts: dict[tuple[Role, int], str] = {}  # by role and index

    def add(self, join: Join, error: UsageError) -> None:
        """This join is refused."""
        if (join.role, join.index) not in self._texts and len(self._texts) < KEPT:
            self._texts[join.role, join.index] = str(error)
            self._note("refused", member=f"{join.role} {join.index}", reason=error)

    def forget(self, role: Role, index: int) -> None:
        """A process of this job has the index now."""
        self._texts.pop((role, index), None)

    def named(self, role: Role, indices: Container[int]) -> list[str]:
        """The refused joins for these indices, in at most one line; for people."""
        return [text for (r, index), text in sorted(self._texts.items()) if r is role and index in indices][:NAMED]


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


def check_versions(join: Join, job: ModelIdentity) -> None:
    """Checks the versions of a process against those of the job's members; UNSAID before there is one.

    Raises:
        ModelDiffersError: another major or minor version of psruntime or TensorFlow.
    """
    if difference := other_versions(join.identity, job):
        raise ModelDiffersError(
            f"{join.role} {join.index} has other versions than the job: {difference}; all its processes need the same"
        )


def other_versions(ours: ModelIdentity, job: ModelIdentity) -> str:
    """The first of the versions that must agree and does not; empty if there is none, or either says nothing."""
    if not (ours.versions.facts and job.versions.facts):
        return ""
    return next(differences(ours.versions, job.versions, "the job"), "")


def check_model(join: Join, specs: tuple[VariableSpec, ...] | None, identity: ModelIdentity | None) -> None:
    """Checks a worker's model against the variables and the identity of the job's; each None while it is not known.

    Raises:
        ModelDiffersError: they differ; names the first difference, with both values.
    """
    spoken = dict(join.identity.facts).get(PROTOCOL, SPEAKS)
    if spoken != SPEAKS:
        raise ModelDiffersError(
            f"worker {join.index} speaks protocol {spoken}, and the coordinator {SPEAKS}: both need the same psruntime"
        )
    what = f"worker {join.index} has another model than the job, first difference: "
    if specs is not None and (difference := first_difference(join.variables, specs)):
        raise ModelDiffersError(
            f"{what}{difference} (here: this worker, there: the job); start it with the job's model"
        )
    if identity is not None and (difference := next(differences(join.identity, identity, "the job"), None)):
        raise ModelDiffersError(f"{what}{difference}; start it with the job's model")


def _is_loopback(address: str) -> bool:
    host = split_address(address)[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")
