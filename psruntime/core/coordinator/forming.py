"""What the next view lacks.  Reads the coordinator's state only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psruntime.core.members.membership import Role
from psruntime.core.members.view import listed

if TYPE_CHECKING:
    from psruntime.core.coordinator.coordinator import Coordinator


def what_is_missing(c: Coordinator) -> str:
    """What is waited for, and who of another job holds it up; empty if the view can be formed."""
    missing = sorted(set(range(c.job.ps)) - {ps.index for ps in c.members.live(Role.PS)})
    if missing:
        return "; ".join([f"waiting for ps {listed(missing)} of {c.job.ps}", *c.strangers.named(Role.PS, missing)])
    workers, needed = c.members.count(Role.WORKER), c.job.min_workers if c.view.number == 0 else 1
    if workers < needed:
        others = c.strangers.named(Role.WORKER, range(c.job.max_workers))
        return "; ".join([f"waiting for workers: {workers} of at least {needed} are there", *others])
    return ""
