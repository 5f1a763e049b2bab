"""Who is chief: a live worker, and as long as somebody trains, one that does: it saves as the training goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psruntime.core.ending import has_stopped, why_drain
from psruntime.core.membership import Role
from psruntime.core.view import Phase

if TYPE_CHECKING:
    from psruntime.core.coordinator import Coordinator


def next_chief(c: Coordinator) -> int | None:
    """The chief, if it may remain; else the lowest index of those who may be; None without any worker."""
    chief = None if c.chief is None else c.members.holder(Role.WORKER, c.chief)
    if chief is not None and (c.phase is not Phase.TRAINING or not has_stopped(c, chief)):
        return chief.index
    workers, busy = c.members.live(Role.WORKER), []
    if c.phase is Phase.TRAINING and not why_drain(c):
        busy = [worker for worker in workers if not has_stopped(c, worker)]
    if chief is not None and not busy:
        return chief.index
    return min((worker.index for worker in busy or workers), default=None)
