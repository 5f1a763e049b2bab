"""The coordinator: composes membership, views, phases, clocks and the fence into one state machine.

One method per input; each answers what the caller shall do, with the reason.  Time (`now_s`) and random
incarnation numbers are arguments.  Whoever owns this object calls it from one thread.

Law: a view is complete or void.  A ps lost, in any phase that is not over, voids it: FORMING.
Law: the variables of a view are used only between `report_prepared` and the loss of one of its ps.
Law: a worker pushes only when every ps of the view has written its incarnation into its admitted table.
Law: there is at most one chief, a live worker, and only its report moves PREPARING or DRAINING on.
"""

from __future__ import annotations

from dataclasses import replace

from psruntime.config import JobConfig
from psruntime.core.clocks import UNBOUNDED, ClockTable
from psruntime.core.facts import (
    Answer,
    Event,
    Join,
    LeaveKind,
    NotYet,
    PsBeat,
    Standing,
    WorkerBeat,
)
from psruntime.core.join_checks import check_join
from psruntime.core.membership import Busy, Member, Membership, Role
from psruntime.core.plan import VariableSpec
from psruntime.core.view import MOVES, Phase, PsEntry, View, over_error
from psruntime.errors import ReplacedError


class Coordinator:
    """See the module.  After any call `take_events` has what happened, for the log."""

    def __init__(self, job: JobConfig, now_s: float) -> None:
        self.job = job
        self.phase = Phase.FORMING
        self.reason = "no ps has joined yet"
        self.view = View()
        self.members = Membership(job.lease_s, now_s)
        self.clocks = ClockTable(UNBOUNDED)
        self.specs: tuple[VariableSpec, ...] | None = None
        self.chief: int | None = None  # worker index
        self.global_step = 0
        self.steps_lost = 0
        self._fence_revision = 0  # changes of the admitted table
        self._fenced_at: dict[int, int] = {}  # worker incarnation -> fence revision of its admission
        self._base_clock: dict[int, int] = {}  # worker incarnation -> its clock when it entered the view
        self.ps_beats: dict[int, PsBeat] = {}  # by incarnation
        self.worker_beats: dict[int, WorkerBeat] = {}  # by incarnation
        self._ps_missing_since_s: dict[int, float] = {}
        self._told: dict[int, tuple[Standing, int]] = {}  # by incarnation: last standing, its revision
        self._events: list[Event] = []

    # Inputs of members.

    def join(self, join: Join, new_incarnation: int, now_s: float) -> Answer | NotYet:
        """Admits a process, or says why not, or not yet.  A repeated join gets its first answer again.

        Raises:
            UsageError: index out of range, a loopback address among remote ones.
            IndexHeldError: the index belongs to a live process.
            ModelDiffersError: a worker's variables are not the job's.
            JobDoneError, JobFailedError: the job is over.
        """
        self.advance(now_s)
        self._refuse_when_over()
        check_join(join, self.job, self.members, self.specs)
        claim = self.members.claim(join.role, join.index, join.join_id, join.waited_s, now_s)
        if isinstance(claim, Busy):
            return NotYet(claim.reason, claim.holder.incarnation, claim.holder.health_address)
        if claim is None:
            claim = self._admit(join, new_incarnation, now_s)
        self._reconsider()
        return self._answer(claim)

    def heartbeat(self, role: Role, index: int, incarnation: int, beat: PsBeat | WorkerBeat, now_s: float) -> Answer:
        """Renews a lease, takes the member's facts, answers its standing.

        Raises:
            ReplacedError: the incarnation is not a member.
        """
        self.advance(now_s)
        member = self.members.get(role, index, incarnation)
        self.members.renew(member, now_s)
        if isinstance(beat, PsBeat):
            if beat.fence_revision > self._told[incarnation][0].fence_revision:
                beat = replace(beat, fence_revision=0)  # of another coordinator: nothing of ours is written
            self.ps_beats[incarnation] = beat
        else:
            self.worker_beats[incarnation] = beat
            if beat.view == self.view.number and incarnation in self._base_clock:
                self.clocks.report(index, self._base_clock[incarnation] + beat.steps)
        if self.phase.prepared and beat.view == self.view.number:
            self.global_step = max(self.global_step, beat.global_step)
        self._reconsider()
        return self._answer(member)

    def standing(self, role: Role, index: int, incarnation: int) -> Answer:
        """A member's standing, without renewing its lease: for an answer that is held back until it changes."""
        return self._answer(self.members.get(role, index, incarnation))

    def report_prepared(self, index: int, incarnation: int, view: int, global_step: int, now_s: float) -> Answer:
        """The chief has initialised, restored or adopted the variables of the view: training starts.

        `global_step` is what they hold.  A report for another view, or a repeated one, changes nothing.

        Raises:
            ReplacedError: not a member, or not the chief.
        """
        self.advance(now_s)
        member = self._chief_of(index, incarnation)
        if self.phase is Phase.PREPARING and view == self.view.number:
            lost = max(0, self.global_step - global_step)
            self.steps_lost += lost
            self.global_step = global_step
            self._note("prepared", view=view, global_step=global_step, steps_lost=lost)
            self._move(Phase.TRAINING, f"view {view} was prepared by worker {index}")
        self._reconsider()
        return self._answer(member)

    def report_finished(self, index: int, incarnation: int, view: int, now_s: float) -> Answer:
        """The chief has written the last checkpoint: the job is done.  Else as `report_prepared`."""
        self.advance(now_s)
        member = self._chief_of(index, incarnation)
        if self.phase is Phase.DRAINING and view == self.view.number:
            self._move(Phase.DONE, f"global step {self.global_step}")
        return self._answer(member)

    def leave(self, role: Role, index: int, incarnation: int, kind: LeaveKind, reason: str, now_s: float) -> None:
        """A member goes.  A repeated leave, or one of a replaced incarnation, changes nothing."""
        self.advance(now_s)
        try:
            member = self.members.get(role, index, incarnation)
        except ReplacedError:
            return
        self.members.remove(member)
        self._forget(member, "member_left", now_s, kind=kind, reason=reason)
        if kind is LeaveKind.FATAL and not self.phase.over:
            self._move(Phase.FAILED, f"{member.name}: {reason}")
        self._reconsider()

    def confirm_lost(self, incarnation: int, now_s: float) -> None:
        """The process of this incarnation is certainly gone: its lease ends now."""
        self.advance(now_s)
        for member in [*self.members.live(Role.PS), *self.members.live(Role.WORKER)]:
            if member.incarnation == incarnation:
                self.members.remove(member)
                self._forget(member, "member_lost", now_s, reason="nothing listens at its address")
        self._reconsider()

    def advance(self, now_s: float) -> None:
        """Moves the time on: ends leases and timeouts.  Called by every input, and by a tick."""
        pause_s = self.members.pause_s(now_s)
        self._ps_missing_since_s = {index: since_s + pause_s for index, since_s in self._ps_missing_since_s.items()}
        for member in self.members.advance(now_s):
            self._forget(member, "member_lost", now_s, reason=f"silent for {now_s - member.renewed_at_s:.1f} s")
        self._reconsider()
        for index, since_s in sorted(self._ps_missing_since_s.items()):
            if not self.phase.over and now_s - since_s > self.job.ps_timeout_s:
                self._move(Phase.FAILED, f"ps {index} did not return within {self.job.ps_timeout_s:g} s (ps_timeout_s)")

    def take_events(self) -> list[Event]:
        """What happened since the last call."""
        events, self._events = self._events, []
        return events

    # Decisions.

    def _reconsider(self) -> None:
        """Draws the consequences of any change.  Idempotent."""
        if self.phase.over:
            return
        if self.chief is None or self.members.holder(Role.WORKER, self.chief) is None:
            self.chief = min((w.index for w in self.members.live(Role.WORKER)), default=None)
            if self.chief is not None:
                self._note("chief", worker=self.chief)
        table = tuple(PsEntry(m.index, m.address, m.incarnation) for m in self.members.live(Role.PS))
        if self.phase is not Phase.FORMING and table != self.view.ps:
            gone = sorted(e.index for e in set(self.view.ps) - set(table))
            self._move(Phase.FORMING, f"ps {_listed(gone)} lost")
        if self.phase is Phase.FORMING:
            self._form(table, self.members.live(Role.WORKER))
        if self.phase is Phase.TRAINING and self.global_step >= self.job.train_steps:
            self._move(Phase.DRAINING, f"global step {self.global_step} of {self.job.train_steps}")

    def _form(self, table: tuple[PsEntry, ...], workers: list[Member]) -> None:
        missing = sorted(set(range(self.job.ps)) - {e.index for e in table})
        needed = self.job.min_workers if self.view.number == 0 else 1
        if missing:
            self.reason = f"waiting for ps {_listed(missing)} of {self.job.ps}"
        elif len(workers) < needed:
            self.reason = f"waiting for workers: {len(workers)} of at least {needed} are there"
        else:
            self.view = View(self.view.number + 1, table)
            self.clocks = ClockTable(UNBOUNDED)
            self._base_clock = {w.incarnation: self.clocks.admit(w.index) for w in workers}
            self._note("view", number=self.view.number, ps=" ".join(e.address for e in table))
            self._move(Phase.PREPARING, f"view {self.view.number} is complete")

    def _move(self, phase: Phase, reason: str) -> None:
        if phase not in MOVES[self.phase]:
            raise ValueError(f"illegal move {self.phase} -> {phase} ({reason}); the phase was: {self.reason}")
        self._note("phase", was=self.phase, now=phase, reason=reason)
        self.phase, self.reason = phase, reason

    def _admit(self, join: Join, incarnation: int, now_s: float) -> Member:
        member = self.members.admit(
            Member(
                join.role, join.index, join.address, join.health_address, join.join_id, incarnation, now_s, now_s, now_s
            ),
            now_s,
        )
        self._note("member_joined", member=member.name, address=member.address, incarnation=f"{incarnation:x}")
        if member.role is Role.PS:
            self._ps_missing_since_s.pop(member.index, None)
        else:
            self.specs = self.specs or join.specs
            self._fence_revision += 1
            self._fenced_at[incarnation] = self._fence_revision
            if self.view.number:
                self._base_clock[incarnation] = self.clocks.admit(member.index)
        return member

    def _forget(self, member: Member, event: str, now_s: float, **facts: object) -> None:
        """Drops what was kept for a member that is gone."""
        self._note(event, member=member.name, incarnation=f"{member.incarnation:x}", **facts)
        self._told.pop(member.incarnation, None)
        if member.role is Role.PS:
            self.ps_beats.pop(member.incarnation, None)
            if self.view.number:
                self._ps_missing_since_s[member.index] = now_s
        else:
            self._fence_revision += 1
            self._fenced_at.pop(member.incarnation, None)
            self.worker_beats.pop(member.incarnation, None)
            if self._base_clock.pop(member.incarnation, None) is not None:
                self.clocks.remove(member.index)
            if self.view.number == 0 and not self.members.live(Role.WORKER):
                self.specs = None  # nothing was made from them yet: another model may come

    def _refuse_when_over(self) -> None:
        if self.phase.over:
            raise over_error(self.phase, self.reason)

    def _chief_of(self, index: int, incarnation: int) -> Member:
        member = self.members.get(Role.WORKER, index, incarnation)
        if self.chief != index:
            raise ReplacedError(f"worker {index} is not the chief, worker {self.chief} is")
        return member

    # Answers.

    def _answer(self, member: Member) -> Answer:
        standing = self._standing_of(member)
        last, revision = self._told.get(member.incarnation, (None, 0))
        if standing != last:
            revision += 1
            self._told[member.incarnation] = (standing, revision)
        return Answer(member.incarnation, standing, revision, self.clocks.floor)

    def _standing_of(self, member: Member) -> Standing:
        if member.role is Role.PS:
            admitted = tuple((w.index, w.incarnation) for w in self.members.live(Role.WORKER))
            return Standing(self.phase, self.reason, self.view, admitted=admitted, fence_revision=self._fence_revision)
        chief = self.chief == member.index
        return Standing(
            self.phase,
            self.reason,
            self.view,
            chief=chief,
            fenced_in=self._fenced_in(member),
            close=chief and self.phase is Phase.DRAINING and self._all_stopped(),
        )

    def _fenced_in(self, member: Member) -> bool:
        since = self._fenced_at[member.incarnation]
        written = [self.ps_beats.get(e.incarnation, PsBeat()).fence_revision for e in self.view.ps]
        return bool(written) and min(written) >= since

    def _all_stopped(self) -> bool:
        beats = [self.worker_beats.get(w.incarnation, WorkerBeat()) for w in self.members.live(Role.WORKER)]
        return all(beat.stopped and beat.view == self.view.number for beat in beats)

    def _note(self, name: str, **facts: object) -> None:
        self._events.append(Event(name, facts))


def _listed(indices: list[int]) -> str:
    return ", ".join(str(i) for i in indices)
