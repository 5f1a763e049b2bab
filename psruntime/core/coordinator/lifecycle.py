"""The rules of a job's life: when a view can form, who is chief, when training ends, when the job fails.

Every function reads the state and changes nothing.  They stand in the order of a job's life.

A job that drains waits for two things: first for every worker to stop, then for the chief to close, which is to write
the last checkpoint and to evaluate.  The chief's time starts anew with every part of the closing that it reports.  A
worker that takes too long is cut off: its lease ends, the ps refuse what it still pushes, and the drain continues
without it.

Law: the chief is a live worker; while any worker trains, the chief trains too, because it saves while the job trains.
Law: a worker that joins while the job drains counts as stopped (the Coordinator admits it so).
Law: a worker that was cut off is not chief again in this drain.
"""

from __future__ import annotations

from psruntime.config.schedule import SYNC
from psruntime.core.coordinator.ending import A_WORKER, TO_STOP, Wait
from psruntime.core.coordinator.job_state import JobState
from psruntime.core.members.membership import Member, Role
from psruntime.core.members.messages import WorkerBeat
from psruntime.core.members.view import Phase, listed
from psruntime.errors import ReplacedError

# Forming a view.


def what_is_missing(state: JobState) -> str:
    """What the next view lacks, and who of another job is in the way; empty if it can be formed."""
    job, refused = state.job, state.refused_joins
    missing = sorted(set(range(job.ps)) - {ps.index for ps in state.members.live(Role.PS)})
    if missing:
        return "; ".join([f"waiting for ps {listed(missing)} of {job.ps}", *refused.named(Role.PS, missing)])
    workers, needed = state.members.count(Role.WORKER), state.workers_needed
    if workers < needed:
        others = refused.named(Role.WORKER, range(job.max_workers))
        return "; ".join([f"waiting for workers: {workers} of at least {needed} are there", *others])
    return ""


# The chief.


def next_chief(state: JobState) -> int | None:
    """The present chief, if it may remain; else the next one, as a rule the lowest index; None if none may be."""
    chief, stopped = state.chief_member, state.worker_beats.has_stopped
    if chief is not None and state.reliefs.bars(chief):
        chief = None
    if chief is not None and (state.phase is not Phase.TRAINING or not stopped(chief.incarnation)):
        return chief.index
    workers, busy = [w for w in state.members.live(Role.WORKER) if not state.reliefs.bars(w)], []
    if state.phase is Phase.DRAINING:
        workers = [worker for worker in workers if not state.drain_timer.bars(worker)]
    if state.phase is Phase.TRAINING and not why_drain(state):
        busy = [worker for worker in workers if not stopped(worker.incarnation)]
    if chief is not None and not busy:
        return chief.index
    candidates = busy or workers
    first = [worker for worker in candidates if not state.chief_progress.avoids(worker)]
    chosen = min(first or candidates, key=state.reliefs.order, default=None)
    return chosen.index if chosen else None


def require_chief(state: JobState, index: int, incarnation: int) -> Member:
    """The chief, if it is this incarnation.

    Raises:
        ReplacedError: it is not a member, or not the chief.
    """
    member = state.members.get(Role.WORKER, index, incarnation)
    if state.chief != index:
        is_chief = "no worker is" if state.chief is None else f"worker {state.chief} is"
        raise ReplacedError(f"worker {index} is not the chief, {is_chief}")
    return member


def require_closer(state: JobState, index: int) -> None:
    """Raises ReplacedError unless this worker closes the open round by itself, as a rule as the chief."""
    closer = state.sync.rounds.closer(state.chief)
    if closer != index:
        is_closer = "no worker does" if closer is None else f"worker {closer} does"
        raise ReplacedError(f"worker {index} does not close the round, {is_closer}")


def why_not_prepared(state: JobState) -> str:
    """Why no worker prepares the view although there are workers; empty if one does, or there are none."""
    if state.phase is not Phase.PREPARING or state.chief is not None or not state.members.count(Role.WORKER):
        return ""
    return f"no worker can prepare view {state.view.number}: {state.reliefs}"


def preparation(state: JobState) -> object:
    """The worker that prepares the view and its reported progress, to be compared; None if none does."""
    if state.phase is not Phase.PREPARING or state.chief_member is None:
        return None
    return state.view.number, state.chief_member.incarnation, _is_at_it(state)


def why_relieve(state: JobState) -> str:
    """Why the chief is cut off: it is late, and another worker may be chief.  Empty while it is not."""
    why = _why_late(state)
    if not why or state.chief is None:
        return ""
    others = (worker for worker in state.members.live(Role.WORKER) if worker.index != state.chief)
    return why if any(_may_succeed(state, worker) for worker in others) else ""


def overdue_checkpoint(state: JobState) -> str:
    """By how much the next checkpoint is overdue, for people; empty if it is not."""
    if not can_save(state) or not state.chief_progress.is_overdue(state.global_step):
        return ""
    steps = state.global_step - (state.past.saved_step or 0)
    return f"the checkpoint is overdue by {state.chief_progress.due.for_s:.0f} s, {steps} steps after the latest"


def _why_late(state: JobState) -> str:
    progress, chief = state.chief_progress, state.chief_member
    if chief is None:
        return ""
    if state.phase is Phase.PREPARING:
        at_it = _is_at_it(state)
        how = "made no progress with preparing" if at_it else "did not begin to prepare"
        late = progress.is_late_to_prepare(at_it) and (state.specs or not at_it)  # a script's init_fn knows no fence
        return f"{how} view {state.view.number} for {progress.preparing.for_s:.0f} s" if late else ""
    overdue = overdue_checkpoint(state)
    return overdue if overdue and progress.is_late_to_save(state.worker_beats.get(chief.incarnation)) else ""


def _is_at_it(state: JobState) -> bool:
    """Whether the chief prepares the view, or has to build its sessions first: it has not trained yet."""
    chief = state.chief_member
    beat = state.worker_beats.get(chief.incarnation) if chief else WorkerBeat()
    return beat.prepares == state.view.number or not beat.view


def _may_succeed(state: JobState, worker: Member) -> bool:
    """Whether a worker may be chief after one that was late."""
    stopped = state.phase is Phase.TRAINING and state.worker_beats.has_stopped(worker.incarnation)
    return not (stopped or state.reliefs.bars(worker) or state.chief_progress.avoids(worker))


# The end of training.


def all_stopped(state: JobState) -> bool:
    """Whether there are live workers, and none of them takes a further step in this view."""
    return 0 < state.worker_beats.stopped == state.members.count(Role.WORKER)


def why_drain(state: JobState) -> str:
    """Why no training step may begin any more; empty while the job trains."""
    limit = state.job.train_steps
    if limit is not None and state.global_step >= limit:
        if state.began_at is not None and state.began_at >= limit:
            return (
                f"already at global step {state.began_at} of {limit} (--train-steps): nothing to train; "
                "raise --train-steps to go on"
            )
        return f"global step {state.global_step} of {limit}"
    if state.shards.over:
        return _why_over(state)
    if state.early_stop:
        return f"{state.early_stop}; ended early, at global step {state.global_step}"
    if state.grace.settled and all_stopped(state):
        return f"all workers have stopped, at global step {state.global_step}"
    if state.mode == SYNC and state.worker_beats.stopped:
        first = next(w for w in state.members.live(Role.WORKER) if state.worker_beats.has_stopped(w.incarnation))
        return f"{first.name} has stopped at global step {state.global_step}, and a round needs every worker"
    return ""


def _why_over(state: JobState) -> str:
    epochs, at = state.job.epochs, f"at global step {state.global_step}"
    if state.shards.began_over:
        return (
            f"epoch {epochs} of {epochs} (--epochs) was done already, {at}: nothing to train; raise --epochs to go on"
        )
    return f"{state.shards.why_over}, {at}"


def why_stop(state: JobState) -> str:
    """Why the job was asked to stop before its end; empty while it was not."""
    coordinator = state.members.holder(Role.PS, 0)
    if coordinator and state.stop.has_asked(coordinator):
        return "ps 0, which has the coordinator, was asked to stop"
    if state.phase.prepared and 0 < state.stop.workers == state.members.count(Role.WORKER):
        return "every worker was asked to stop"
    return ""


def stops_short(state: JobState) -> bool:
    """Whether the job was asked to stop, and not at its end anyway: then it is evaluated, too."""
    return bool(state.stop.reason) and (
        state.stop.fails or state.stop.cuts_short or state.phase not in (Phase.DRAINING, Phase.DONE)
    )


def why_stopped(state: JobState) -> str:
    """Why a job that was asked to stop is over, though its chief has not ended it; empty while a worker may."""
    stop, why = state.stop, ""
    if is_closing_failed(state):
        return ""
    if stop.is_late and state.phase is Phase.DRAINING and state.past.saved_step == state.global_step:
        why = f"it was saved, and its evaluation did not end within {state.job.stop_grace_s:g} s (stop_grace_s)"
    elif stop.is_late:
        why = f"it was not saved within {state.job.stop_grace_s:g} s (stop_grace_s)"
    elif stop.reason and state.phase is Phase.FORMING:
        why = f"nothing could be saved in phase FORMING ({state.reason})"
    elif stop.reason and not state.members.count(Role.WORKER):
        why = "no worker is there to save what was trained"
    return f"{stop.reason}; {why}; {newest_checkpoint(state)}" if why else ""


def is_closing_failed(state: JobState) -> bool:
    """Whether a chief saves what a job that fails has trained.  Its end was not asked for, so that the chief has as
    long as at any other: `whom_to_cut_off` knows when it is over."""
    may_save = state.stop.fails and state.job.stop_grace_s > 0
    return may_save and state.phase is Phase.DRAINING and all_stopped(state) and state.chief is not None


def newest_checkpoint(state: JobState) -> str:
    """The checkpoint from which the job can continue."""
    if state.specs == ():
        return "a script's own hooks save"
    if not state.job.checkpoint_dir:
        return "nothing is saved without --checkpoint-dir"
    if state.past.saved_step is None:
        return "there is no checkpoint"
    return f"the newest checkpoint is of global step {state.past.saved_step}"


def can_save(state: JobState) -> bool:
    """Whether the chief can write a checkpoint now.  One of a script saves when its own hooks say."""
    return state.phase is Phase.TRAINING and bool(state.job.checkpoint_dir and state.specs) and state.chief is not None


# The drain.


def drain_wait(state: JobState) -> Wait | None:
    """What the drain waits for: a worker, all workers to stop, or the next part of the chief's closing."""
    if state.phase is not Phase.DRAINING:
        return None
    chief = state.chief_member
    if chief is None:
        return state.view.number, A_WORKER
    if not all_stopped(state):
        return state.view.number, TO_STOP
    return state.view.number, (chief.incarnation, state.worker_beats.get(chief.incarnation).closed_parts)


def drains_for(state: JobState) -> list[Member]:
    """The workers that the drain waits for."""
    workers = state.members.live(Role.WORKER)
    if all_stopped(state):
        return [worker for worker in workers if worker.index == state.chief]
    return [worker for worker in workers if not state.worker_beats.has_stopped(worker.incarnation)]


def whom_to_cut_off(state: JobState) -> list[tuple[Member, str]]:
    """The workers that have kept the drain waiting for too long, each with the reason."""
    if not state.drain_timer.is_late or (state.stop.reason and not state.worker_beats.stopped):
        return []  # no worker would be left to save
    if _evaluates(state) and state.members.count(Role.WORKER) == 1:
        return []  # no other could, and what is trained is saved: it ends its evaluation itself, after a limit
    verb = "finish" if all_stopped(state) else "stop"
    return [(worker, f"did not {verb} within {state.drain_timer.limit}") for worker in drains_for(state)]


def drain_progress(state: JobState) -> str:
    """What the drain waits for, how long it has waited and how long it may."""
    late, timer = listed(worker.index for worker in drains_for(state)), state.drain_timer
    what = f"worker {late} to {'close' if all_stopped(state) else 'stop'}" if late else "a worker that closes"
    text = f"waiting for {what}, for {timer.wait.for_s:.0f} s of at most {timer.limit_s:g} s"
    doing = _evaluates(state)
    return f"{text}; it {doing}" if doing else text


def _evaluates(state: JobState) -> str:
    """How far the chief is with the evaluation at the end; empty if it does something else."""
    chief = state.chief_member
    stats = state.worker_beats.get(chief.incarnation).stats if chief and all_stopped(state) else None
    return stats.waiting if stats and stats.waiting.startswith("evaluates") else ""


# Failure.


def why_fail(state: JobState) -> str:
    """Why the job cannot continue; empty while it can."""
    for index in state.grace.overdue():
        return f"ps {index} did not return within {state.job.ps_timeout_s:g} s (ps_timeout_s)"
    workers = state.members.count(Role.WORKER)
    if state.phase is Phase.TRAINING and (refused := state.refused_pushes.why_hopeless(workers)):
        return refused
    if (obstacle := why_not_prepared(state)) and state.reliefs.waited_s > state.job.ps_timeout_s:
        return f"{obstacle}; none that can came within {state.job.ps_timeout_s:g} s (ps_timeout_s)"
    if state.phase is Phase.DRAINING and state.chief is None and state.drain_timer.is_late:
        return state.drain_timer.why_hopeless
    if reason := state.failures.why_too_few(workers, state.workers_needed, state.has_begun):
        return f"{reason}; {newest_checkpoint(state)}"
    return state.failures.why_hopeless()
