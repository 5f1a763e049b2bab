"""The metrics of the job, from ps 0: the coordinator's status at the time of a reading."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import Metric

from psruntime.config import JobConfig
from psruntime.config.schedule import BOUNDED, MODES
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import JobStatus
from psruntime.core.members.view import Phase
from psruntime.errors import UnreachableError
from psruntime.metrics.families import Families, counter, gauge, state


def of_job(status: Callable[[], JobStatus], job: JobConfig) -> Families:
    """status: calls the coordinator; a reading while it does not answer has no metrics of the job."""

    def read() -> Iterable[Metric]:
        try:
            now = status()
        except UnreachableError:
            return ()
        return [*_whole(now, job), *_members(now)]

    return Families(read)


def _whole(status: JobStatus, job: JobConfig) -> Iterable[Metric]:
    settings = status.steering.settings
    mode = settings.mode or job.mode
    yield gauge("job_info", "The job, by its labels; always 1.", ({"job_id": job.job_id}, 1))
    yield state(
        "job_phase",
        "1 for the phase of the job, 0 for the others.",
        "phase",
        [p.value for p in Phase],
        status.phase.value,
    )
    yield state("job_mode", "1 for the mode in force, 0 for the others.", "mode", MODES, mode)
    yield gauge("job_paused", "1 while an operator has paused the job.", ({}, settings.paused))
    yield gauge("job_view", "Number of the view.", ({}, status.view.number))
    yield gauge("job_global_step", "Updates in the variables; less after a rollback.", ({}, status.global_step))
    if job.train_steps is not None:
        yield gauge("job_train_steps", "Global step at which the job ends.", ({}, job.train_steps))
    yield counter("job_steps_lost", "Global steps lost to rollbacks.", ({}, status.steps_lost))
    yield gauge("job_balanced", "1 while the ledgers account for every update that arrived.", ({}, status.balanced))
    yield gauge("job_lease_seconds", "The lease: a member that is silent for longer is lost.", ({}, job.lease_s))
    yield gauge("job_min_workers", "Workers without which training does not begin.", ({}, job.min_workers))
    yield gauge("job_expected_ps", "Number of ps; all must be there to train.", ({}, job.ps))
    yield gauge("job_floor_steps", "The slowest live clock.", ({}, status.floor))
    bound = job.bound if settings.bound is None else settings.bound
    if mode == BOUNDED and bound is not None:
        yield gauge("job_bound_steps", "Largest lead at which a step may begin.", ({}, bound))
    yield gauge("job_max_lead_steps", "Largest lead at which a step began, as far as is known.", ({}, status.max_lead))
    if status.saved_step is not None:
        yield gauge("job_checkpoint_global_step", "Global step of the newest checkpoint.", ({}, status.saved_step))
    if status.saved_ago_s is not None:
        yield gauge(
            "job_checkpoint_age_seconds",
            "Time since the coordinator learned of the newest checkpoint.",
            ({}, status.saved_ago_s),
        )
    if shards := status.shards:
        yield gauge("job_epoch", "The present epoch, from 1.", ({}, shards.epoch))
        yield gauge("job_epoch_shards", "Data shards in an epoch.", ({}, shards.of))
        yield gauge("job_epoch_shards_done", "Data shards of the present epoch that are done.", ({}, shards.done))
        yield counter("job_shards_handed_out_again", "Data shards that were handed out again.", ({}, shards.again))


def _members(status: JobStatus) -> Iterable[Metric]:
    roles = [({"role": role.value}, sum(m.role is role for m in status.members)) for role in Role]
    yield gauge("job_members", "Live members.", *roles)
    of = [({"role": m.role.value, "index": m.index}, m) for m in status.members]
    yield gauge(
        "job_member_silent_seconds", "Time since the last message of a member.", *((o, m.silent_s) for o, m in of)
    )
    yield gauge("job_member_heavy", "1 for a ps that moves more than 1.5 times its share.", *(
        (o, m.ps_traffic.heavy) for o, m in of if m.ps_traffic
    ))  # fmt: skip
    workers = [({"worker": m.index}, m) for m in status.members if m.role is Role.WORKER]
    yield gauge("job_worker_chief", "1 for the chief.", *((of, m.chief) for of, m in workers))
    yield gauge("job_worker_clock_steps", "Clock of a worker.", *((of, m.clock) for of, m in workers))
    yield gauge("job_worker_lead_steps", "Steps ahead of the slowest.", *((of, m.lead) for of, m in workers))
    waiting = [(of, bool(m.worker_stats and m.worker_stats.waiting)) for of, m in workers]
    yield gauge("job_worker_waiting", "1 while a worker does not step.", *waiting)
    unanswered = [({"worker": worker}, count) for worker, count in status.unanswered.items()]
    yield gauge("job_worker_updates_unanswered", "Updates sent that some bucket has not received.", *unanswered)
