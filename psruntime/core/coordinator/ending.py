"""When a job ends: its limit is reached, nobody takes a step any more, or it cannot go on.

Reads the coordinator's state only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psruntime.core.members.membership import Role
from psruntime.core.members.view import Phase

if TYPE_CHECKING:
    from psruntime.core.coordinator.coordinator import Coordinator


def all_stopped(c: Coordinator) -> bool:
    """Whether there are live workers, and none of them takes a further step in this view."""
    return 0 < c.worker_beats.stopped == c.members.count(Role.WORKER)


def why_drain(c: Coordinator) -> str:
    """Why no training step shall begin any more; empty while the training goes on."""
    limit = c.job.train_steps
    if limit is not None and c.global_step >= limit:
        if c.began_at is not None and c.began_at >= limit:
            return (
                f"already at global step {c.began_at} of {limit} (--train-steps): nothing to train; "
                "raise --train-steps to go on"
            )
        return f"global step {c.global_step} of {limit}"
    if c.absence.settled and all_stopped(c):
        return f"all workers have stopped, at global step {c.global_step}"
    if c.job.mode == "sync" and c.worker_beats.stopped:
        first = next(w for w in c.members.live(Role.WORKER) if c.worker_beats.has_stopped(w.incarnation))
        return f"{first.name} has stopped at global step {c.global_step}, and a round needs every worker"
    return ""


def why_fail(c: Coordinator, now_s: float) -> str:
    """Why the job cannot go on; empty while it can."""
    for index in c.absence.overdue(now_s):
        return f"ps {index} did not return within {c.job.ps_timeout_s:g} s (ps_timeout_s)"
    if c.phase is Phase.DRAINING and c.chief is None and c.draining.is_late:
        return c.draining.why_hopeless
    return ""
