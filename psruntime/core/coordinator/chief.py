"""Who is chief: a live worker, and as long as somebody trains, one that does: it saves as the training goes on.

While the job drains it is none that was cut off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psruntime.core.coordinator.ending import why_drain
from psruntime.core.members.membership import Member, Role
from psruntime.core.members.view import Phase
from psruntime.errors import ReplacedError

if TYPE_CHECKING:
    from psruntime.core.coordinator.coordinator import Coordinator


def next_chief(c: Coordinator) -> int | None:
    """The chief, if it may remain; else the lowest index of those who may be; None without any worker."""
    chief = None if c.chief is None else c.members.holder(Role.WORKER, c.chief)
    if chief is not None and (c.phase is not Phase.TRAINING or not c.worker_beats.has_stopped(chief.incarnation)):
        return chief.index
    workers, busy = c.members.live(Role.WORKER), []
    if c.phase is Phase.DRAINING:
        workers = [worker for worker in workers if not c.draining.bars(worker)]
    if c.phase is Phase.TRAINING and not why_drain(c):
        busy = [worker for worker in workers if not c.worker_beats.has_stopped(worker.incarnation)]
    if chief is not None and not busy:
        return chief.index
    return min((worker.index for worker in busy or workers), default=None)


def require_chief(c: Coordinator, index: int, incarnation: int) -> Member:
    """The chief, if it is this incarnation.

    Raises:
        ReplacedError: it is not a member, or not the chief.
    """
    member = c.members.get(Role.WORKER, index, incarnation)
    if c.chief != index:
        is_chief = "nobody is" if c.chief is None else f"worker {c.chief} is"
        raise ReplacedError(f"worker {index} is not the chief, {is_chief}")
    return member
