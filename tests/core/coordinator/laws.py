"""What must hold after every call of a coordinator, whatever came before.  See expected.py for the model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psruntime.core.coordinator import steered
from psruntime.core.coordinator.answers import job_status
from psruntime.core.coordinator.job_state import JobState
from psruntime.core.members.departures import KEPT
from psruntime.core.members.job_status import JobStatus
from psruntime.core.members.membership import Role, tag_of
from psruntime.core.members.messages import Answer, WorkerBeat
from psruntime.core.members.view import Phase, View

if TYPE_CHECKING:
    from tests.core.coordinator.expected import Expected

LEGAL_MOVES = {
    "FORMING -> PREPARING", "PREPARING -> TRAINING", "TRAINING -> DRAINING", "DRAINING -> DONE",
    "PREPARING -> FORMING", "TRAINING -> FORMING", "DRAINING -> FORMING",
    "FORMING -> FAILED", "PREPARING -> FAILED", "TRAINING -> FAILED", "DRAINING -> FAILED",
}  # fmt: skip


@dataclass(frozen=True)
class Before:
    """The coordinator's state before a call."""

    phase: Phase
    view: View
    floor: int
    members: frozenset[int]

    @classmethod
    def of(cls, state: JobState) -> Before:
        members = frozenset(m.incarnation for role in Role for m in state.members.live(role))
        return cls(state.phase, state.view, state.pace.floor, members)


def check_events(watched: Expected, before: Before, moves_to: Phase | None) -> None:
    """The log tells of every move, with a cause that allows it, and of everybody who came or went."""
    state, phase, made = watched.state, before.phase, []
    came, went = set(), set()
    for event in watched.core.take_effects().events:
        watched.seen[f"event {event.name}"] += 1
        if event.name == "phase":
            assert event.facts["was"] is phase
            phase = event.facts["now"]
            check_move(watched, before, event.facts, moves_to)
            made.append(phase)
        elif event.name == "member_joined":
            came.add(event.facts["incarnation"])
        elif event.name in ("member_left", "member_lost", "cut_off"):
            went.add(event.facts["incarnation"])
    assert state.phase is phase
    assert moves_to is None or moves_to in made
    assert came == {tag_of(n) for n in set(watched.live) - before.members}
    assert went == {tag_of(n) for n in before.members - set(watched.live)}


def check_move(watched: Expected, before: Before, facts: dict[str, Any], moves_to: Phase | None) -> None:
    state, now = watched.state, facts["now"]
    move = f"{facts['was']} -> {now}"
    watched.seen[move] += 1
    assert move in LEGAL_MOVES
    match now:
        case Phase.FORMING:
            gone = {str(e.index) for e in before.view.ps if e.incarnation not in watched.live}
            named = str(facts["reason"]).removeprefix("ps ").removesuffix(" lost").split(", ")
            assert set(named) <= gone, "more may be gone by the end of the call, but not fewer"
        case Phase.PREPARING:
            assert state.view.number == before.view.number + 1
        case Phase.DRAINING:
            limit = watched.job.train_steps
            reached = limit is not None and state.global_step >= limit
            reached = reached or any(member.beat.early_stop for member in watched.live.values() if member.beat)
            assert reached or (watched.settled and (watched.had_all_stopped or all_stopped(watched)))
            watched.seen["all stopped"] += not reached
        case Phase.FAILED if moves_to is None:
            late = [i for i, missing_s in sorted(watched.missing_s.items()) if missing_s > watched.job.ps_timeout_s]
            why = f"ps {late[0]} did not return within" if late else "no worker is left to write the last checkpoint: "
            assert facts["reason"].startswith(why)
            assert bool(late) != watched.doomed
            watched.seen["ps timeout"] += bool(late)
        case _:
            assert now is moves_to, "only a report of the chief, or a fatal leave, does this"


def check_state(watched: Expected, before: Before) -> None:
    state, live, phase = watched.state, watched.live, watched.state.phase
    workers = watched.live_of(Role.WORKER)
    assert {m.incarnation for role in Role for m in state.members.live(role)} == set(live)
    if before.phase.over:
        assert phase is before.phase
    check_phase(watched, len(workers))
    assert state.chief == (watched.joins[watched.chief].index if watched.chief else None)
    if not phase.over:
        candidates = [n for n in workers if phase is not Phase.DRAINING or watched.place(n) not in watched.cut_off]
        assert (watched.chief in candidates) if candidates else watched.chief is None
    watched.seen["waits for who may return"] += phase is Phase.TRAINING and all_stopped(watched)
    if phase is Phase.TRAINING and watched.chief and not all_stopped(watched):
        assert not has_stopped(watched, watched.chief), "whoever saves takes part"
    assert (state.global_step, state.steps_lost) == (watched.global_step, watched.steps_lost)
    check_view_and_clocks(watched, before)
    check_memory(watched)
    check_status(watched, workers)


def check_phase(watched: Expected, workers: int) -> None:
    """The phase is one that the facts allow."""
    state, job = watched.state, watched.job
    complete = [watched.joins[n].index for n in watched.live_of(Role.PS)] == list(range(job.ps))
    if state.phase is Phase.FORMING:
        needed = 1 if state.view.number else job.min_workers
        assert not complete or workers < needed, "nothing is missing, so why wait"
        assert state.reason.startswith("waiting for")
    elif not state.phase.over:
        assert [e.index for e in state.view.ps] == list(range(job.ps))
        for entry in state.view.ps:
            assert watched.live[entry.incarnation].join.address == entry.address
    if state.phase is Phase.TRAINING:
        assert job.train_steps is None or state.global_step < job.train_steps
        assert not (watched.settled and all_stopped(watched)), "nobody trains, so what is it waiting for"
    assert state.phase.over or max(watched.missing_s.values(), default=0.0) <= job.ps_timeout_s


def check_view_and_clocks(watched: Expected, before: Before) -> None:
    """A view is never changed, only followed by the next one, in which everybody begins at 0."""
    state, clocks = watched.state, watched.state.pace.clocks
    if state.view.number == before.view.number:
        assert state.view == before.view
        assert clocks.floor >= before.floor
    else:
        assert state.view.number == before.view.number + 1
        assert clocks.floor == 0
    pacing = watched.pacing() if state.view.number else {}
    assert clocks.clocks == pacing
    assert clocks.floor == min(pacing.values(), default=watched.floor) == watched.floor


def check_status(watched: Expected, workers: list[int]) -> None:
    """What an operator reads is what the coordinator goes by."""
    state, status = watched.state, job_status(watched.state, watched.now_s)
    assert (status.phase, status.view, status.floor) == (state.phase, state.view, state.pace.floor)
    members = dict(zip(watched.live_of(Role.PS) + workers, status.members, strict=True))
    assert all(m.incarnation == tag_of(n) for n, m in members.items())
    assert [n for n, m in members.items() if m.chief] == [n for n in workers if n == watched.chief]
    assert all(m.silent_s == watched.now_s - watched.live[n].heard_s for n, m in members.items())
    assert [n for n, m in members.items() if m.stopped] == [n for n in workers if has_stopped(watched, n)]
    more = status.reason.removeprefix(state.reason)
    if state.phase is Phase.DRAINING:
        _, late = watched.what_the_end_waits_for()
        whom = f"worker {', '.join(str(watched.joins[n].index) for n in late)}" if late else "a worker that closes"
        what = whom + (" to close" if all_stopped(watched) else " to stop") * bool(late)
        assert (
            more == f"; waiting for {what}, for {watched.waited_s:.0f} s of at most {watched.job.drain_timeout_s:g} s"
        )
    elif state.phase is Phase.PREPARING and workers:
        assert watched.chief is not None
        assert more == f"; waiting for worker {watched.joins[watched.chief].index}, the chief, to prepare it"
    elif state.phase in (Phase.PREPARING, Phase.TRAINING):
        held = steered.pause_of(state)[1]  # of a command, which the model does not know
        said = f"; {held}" if held and state.phase is Phase.TRAINING else ""
        assert more == said if workers else more.startswith("; no worker is live")
    elif state.phase is not Phase.FORMING:
        assert more == ""
    if not state.phase.over:
        check_departures(watched, status, more)


def check_departures(watched: Expected, status: JobStatus, said: str) -> None:
    """Whoever went is remembered, and named while it is missed; nobody of those who are there is."""
    assert len(status.departures) <= KEPT
    assert not {tag_of(n) for n in watched.live} & {d.incarnation for d in status.departures}
    missed = {f"{d.role} {d.index} " for d in status.departures} - {f"{m.role} {m.index} " for m in status.members}
    named = set(re.findall(r"; ((?:ps|worker) \d+ )(?:left|was lost) \d+ s ago", said))
    assert named <= missed
    if missed and "no worker is live" in said and any(who.startswith("worker") for who in missed):
        assert any(who.startswith("worker") for who in named), f"nobody says why no worker is live: {said}"


def check_memory(watched: Expected) -> None:
    """Nothing is kept for incarnations that are gone."""
    state = watched.state
    for name, kept in vars(state).items():
        if name == "grace":
            assert set(kept._ps_since_s) == set(watched.missing_s)
        elif name == "drain_timer":
            assert set(kept._cut_off) == watched.cut_off
        elif name == "pace":
            steppers = {n for n in watched.live_of(Role.WORKER) if not watched.live[n].retired}
            assert set(kept._base) == (steppers if watched.state.view.number else set())
        elif isinstance(kept, dict):
            assert set(kept) <= set(watched.live), f"{name} keeps what is gone"


def check_answer(watched: Expected, incarnation: int, answer: Answer) -> None:
    state, instructions, member = watched.state, answer.instructions, watched.live[incarnation]
    assert answer.incarnation == incarnation
    assert (instructions.phase, instructions.reason, instructions.view) == (state.phase, state.reason, state.view)
    last = watched.told.get(incarnation)
    if last is None:
        assert answer.revision == 1
    else:
        assert answer.revision == last.revision + (instructions != last.instructions)
    watched.told[incarnation] = answer
    if member.join.role is Role.PS:
        check_fence(watched, incarnation, answer)
    else:
        assert instructions.clock == member.base
        assert instructions.admitted_by_ps == is_admitted_by_ps(watched, incarnation)
        assert instructions.chief == (incarnation == watched.chief)
        assert instructions.close == (instructions.chief and state.phase is Phase.DRAINING and all_stopped(watched))
        watched.seen["admitted by the ps"] += instructions.admitted_by_ps
        watched.seen["not admitted by the ps"] += state.phase.prepared and not instructions.admitted_by_ps
        watched.seen["close"] += instructions.close


def check_fence(watched: Expected, incarnation: int, answer: Answer) -> None:
    """A ps is told the live workers; one revision never stands for two tables."""
    instructions = answer.instructions
    assert instructions.admitted == tuple((watched.joins[n].index, n) for n in watched.live_of(Role.WORKER))
    check_limit(watched, instructions.max_staleness)
    for fences in watched.fences.values():
        assert fences.get(instructions.fence_revision, instructions.admitted) == instructions.admitted
        assert max(fences) <= instructions.fence_revision
    watched.fences.setdefault(incarnation, {})[instructions.fence_revision] = instructions.admitted


def check_limit(watched: Expected, max_staleness: int | None) -> None:
    """What a ps lets pass: for the live workers, and for those that went a short while ago."""
    job = watched.job
    if job.bound is None:
        assert max_staleness == job.max_staleness
        return
    live = len(watched.live_of(Role.WORKER))
    own = 2 * min(job.pipeline - 1, job.bound)
    assert max_staleness == (2 * job.bound + 1) * max(0, live + len(watched.gone) - 1) + own
    watched.seen["limit kept"] += bool(watched.gone)


def is_admitted_by_ps(watched: Expected, incarnation: int) -> bool:
    """Whether every ps of the view has written a table with this incarnation, which it had been told."""
    worker = (watched.joins[incarnation].index, incarnation)
    entries = watched.state.view.ps
    for entry in entries:
        member = watched.live.get(entry.incarnation)
        if member is None or member.wrote is None or worker not in watched.fences[entry.incarnation][member.wrote]:
            return False
    return bool(entries)


def all_stopped(watched: Expected) -> bool:
    workers = watched.live_of(Role.WORKER)
    return bool(workers) and all(has_stopped(watched, n) for n in workers)


def has_stopped(watched: Expected, incarnation: int) -> bool:
    member = watched.live.get(incarnation)
    beat = member.beat if member else WorkerBeat()
    return bool(member and member.rests) or (beat.stopped and beat.view == watched.state.view.number)
