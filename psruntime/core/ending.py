"""When a job ends: its limit is reached, or nobody takes a step any more.  Reads the coordinator's state only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from psruntime.core.facts import WorkerBeat
from psruntime.core.membership import Member, Role
from psruntime.core.view import Phase

if TYPE_CHECKING:
    from psruntime.core.coordinator import Coordinator


def has_stopped(c: Coordinator, worker: Member) -> bool:
    """Whether it takes no further step in this view; that it had stopped in an older one means nothing."""
    beat = c.worker_beats.get(worker.incarnation, WorkerBeat())
    return beat.stopped and beat.view == c.view.number


def still_stopped(c: Coordinator, incarnation: int, beat: WorkerBeat) -> WorkerBeat:
    """The beat of a worker, which does not begin to step again while the job drains.

    One that says so was overtaken on its way by the one in which it had stopped.
    """
    before = c.worker_beats.get(incarnation, WorkerBeat())
    overtaken = c.phase is Phase.DRAINING and before.stopped and before.view == beat.view
    return replace(beat, stopped=True) if overtaken else beat


def all_stopped(c: Coordinator) -> bool:
    """Whether there are live workers, and none of them takes a further step in this view."""
    workers = c.members.live(Role.WORKER)
    return bool(workers) and all(has_stopped(c, worker) for worker in workers)


def why_drain(c: Coordinator) -> str:
    """Why no training step shall begin any more; empty while the training goes on."""
    limit = c.job.train_steps
    if limit is not None and c.global_step >= limit:
        return f"global step {c.global_step} of {limit}"
    if c.absence.settled and all_stopped(c):
        return f"all workers have stopped, at global step {c.global_step}"
    stopped = [worker.name for worker in c.members.live(Role.WORKER) if has_stopped(c, worker)]
    if c.job.mode == "sync" and stopped:
        return f"{stopped[0]} has stopped at global step {c.global_step}, and a round needs every worker"
    return ""
