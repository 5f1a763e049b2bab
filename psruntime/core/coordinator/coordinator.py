"""The coordinator: composes membership, views, phases, clocks and the fence into one state machine.

One method per input; each answers what the caller shall do, with the reason.  Time (`now_s`) and random
incarnation numbers are arguments.  Whoever owns this object calls it from one thread.

Law: a view is complete or void.  A ps lost, in any phase that is not over, voids it: FORMING.
Law: the variables of a view are used only between `report_prepared` and the loss of one of its ps.
Law: a worker pushes only when every ps of the view has written its incarnation into its admitted table.
Law: there is at most one chief, a live worker, and only its report moves PREPARING or DRAINING on.
"""

from __future__ import annotations

from psruntime.config import JobConfig
from psruntime.core.accounting.accounts import Accounts, account_facts
from psruntime.core.accounting.traffic import Traffic
from psruntime.core.clocks.pace import Pace
from psruntime.core.coordinator.chief import next_chief, require_chief
from psruntime.core.coordinator.draining import Draining
from psruntime.core.coordinator.ending import why_drain, why_fail
from psruntime.core.coordinator.forming import what_is_missing
from psruntime.core.coordinator.instructions import Told, standing_of, written_here
from psruntime.core.coordinator.join_checks import check_join
from psruntime.core.members.beats import WorkerBeats
from psruntime.core.members.departures import Departures
from psruntime.core.members.fence import Fence
from psruntime.core.members.grace_periods import Absence
from psruntime.core.members.membership import Busy, Member, Membership, Role
from psruntime.core.members.messages import Answer, Event, Join, LeaveKind, NotYet, Prepared, PsBeat, WorkerBeat
from psruntime.core.members.refused_joins import Strangers
from psruntime.core.members.view import MOVES, Phase, PsEntry, View, listed, over_error
from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.rounds.round_messages import Closed, Done, Torn, Turn
from psruntime.core.rounds.turns import Turns
from psruntime.errors import ReplacedError


class Coordinator:
    """See the module.  After any call `take_events` has what happened, for the log."""

    def __init__(self, job: JobConfig, now_s: float) -> None:
        self.job = job
        self.phase = Phase.FORMING
        self.reason = "no ps has joined yet"
        self.view = View()
        self.members = Membership(job.lease_s, now_s)
        self.pace = Pace(job)
        self.specs: tuple[VariableSpec, ...] | None = None
        self.chief: int | None = None  # worker index
        self.global_step = 0
        self.began_at: int | None = None  # the global step from which this coordinator's first view goes on
        self.steps_lost = 0
        self.restore = False  # whether the view that forms shall not adopt what its ps hold
        self.fence = Fence()
        self.turns = Turns(job.round_warn_s, self._note, job.train_steps)  # mode sync
        self.ps_beats: dict[int, PsBeat] = {}  # by incarnation
        self.worker_beats = WorkerBeats()
        self.accounts = Accounts()
        self.traffic = Traffic(job.ps, job.lease_s, self._note)
        self.absence = Absence(job, now_s)
        self.draining = Draining(job.drain_timeout_s)
        self.strangers = Strangers(self._note)
        self.departures = Departures()
        self._told = Told()
        self._events: list[Event] = []

    # Inputs of members.

    def join(self, join: Join, new_incarnation: int, now_s: float) -> Answer | NotYet:
        """Admits a process, or says why not, or not yet.  A repeated join gets its first answer again.

        Raises:
            OtherJobError: the process serves another job.
            UsageError: index out of range, a loopback address among remote ones.
            IndexHeldError: the index belongs to a live process.
            ModelDiffersError: a worker's variables are not the job's.
            JobDoneError, JobFailedError: the job is over.
        """
        self.advance(now_s)
        if self.phase.over:
            raise over_error(self.phase, self.reason)
        with self.strangers.noted(join):
            check_join(join, self.job, self.members, self.specs)
        claim = self.members.claim(join.role, join.index, join.join_id, join.waited_s, now_s)
        if isinstance(claim, Busy):
            return NotYet(claim.reason, claim.holder.tag, claim.holder)
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
            self.ps_beats[incarnation] = written_here(beat, self._told.last(incarnation))
        else:
            beat = self.worker_beats.take(incarnation, beat, self.view.number, self.phase is Phase.DRAINING)
            if beat.view == self.view.number:
                self.pace.report(member, beat.steps, beat.stopped)
        self.accounts.hear(index, beat.stats)
        self.traffic.hear(member, beat.stats, self.phase is Phase.TRAINING, now_s)
        if self.phase.prepared and beat.view == self.view.number and self.job.mode != "sync":
            self.global_step = max(self.global_step, beat.global_step)
        self._reconsider()
        return self._answer(member)

    def standing(self, role: Role, index: int, incarnation: int) -> Answer:
        """A member's standing, without renewing its lease: for an answer that is held back until it changes."""
        return self._answer(self.members.get(role, index, incarnation))

    def report_clock(self, index: int, incarnation: int, view: int, steps: int, now_s: float) -> tuple[int, str]:
        """A worker has completed so many steps in a view: its floor, and for whom it has to wait, if so.

        A late or repeated report changes nothing.  For another view the floor is 0, which is safe in any.
        Raises ReplacedError: not a member.
        """
        self.advance(now_s)
        member = self.members.get(Role.WORKER, index, incarnation)
        if view != self.view.number:
            return 0, f"the view is {self.view.number}, not {view}"
        self.pace.report(member, steps)
        return self.pace.floor, self.pace.waits_for(member)

    def take_turn(self, index: int, incarnation: int, view: int, done: Done | None, now_s: float) -> Turn:
        """Mode sync: a worker with a session on the view says what it has done, and is told what to do.

        Raises:
            ReplacedError: not a member, or not the chief and says that it closed a round by itself.
        """
        self.advance(now_s)
        member, rounds = self.members.get(Role.WORKER, index, incarnation), self.turns.rounds
        if isinstance(done, Closed | Torn) and rounds.is_closing(done):
            require_chief(self, index, incarnation)
        if self.job.mode == "sync" and self.phase is Phase.TRAINING and view == self.view.number:
            self.turns.take(incarnation, index, done)
            self.global_step = rounds.global_step
            if isinstance(done, Torn) and rounds.tears(done):
                self.restore = True
                self._move(Phase.FORMING, f"round {done.round} is torn: {done.reason}; back to the last checkpoint")
            self._reconsider()
        return self.turn(member.index, incarnation)

    def turn(self, index: int, incarnation: int) -> Turn:
        """A worker's turn, for a call that is held back until it changes."""
        self.members.get(Role.WORKER, index, incarnation)
        return self.turns.rounds.turn_of(incarnation, self.chief)

    def report_prepared(self, index: int, incarnation: int, view: int, prepared: Prepared, now_s: float) -> Answer:
        """The chief has initialised, restored or adopted the variables of the view: training starts.

        A report for another view, or a repeated one, changes nothing.

        Raises:
            ReplacedError: not a member, or not the chief.
        """
        self.advance(now_s)
        member = require_chief(self, index, incarnation)
        if self.phase is Phase.PREPARING and view == self.view.number:
            lost = max(prepared.steps_lost, self.global_step - prepared.global_step)
            self.steps_lost, self.global_step = self.steps_lost + lost, prepared.global_step
            self.began_at = self.global_step if self.began_at is None else self.began_at
            self._note("prepared", view=view, global_step=self.global_step, steps_lost=lost)
            self.restore = False
            if self.job.mode == "sync":
                self.turns.begin(view, prepared.global_step, prepared.attempt)
            self._move(Phase.TRAINING, f"view {view} was prepared by worker {index}")
        self._reconsider()
        return self._answer(member)

    def report_finished(self, index: int, incarnation: int, view: int, now_s: float) -> Answer:
        """The chief has written the last checkpoint: the job is done.  Otherwise as `report_prepared`."""
        self.advance(now_s)
        member = require_chief(self, index, incarnation)
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
        for part in (self.turns, self.pace, self.absence, self.draining):
            part.advance(now_s, pause_s)
        for member in self.members.advance(now_s):
            self._forget(member, "member_lost", now_s, reason=f"silent for {now_s - member.renewed_at_s:.1f} s")
        self._reconsider()
        for member, reason in self.draining.overdue(self):
            self.members.remove(member)
            self._forget(member, "cut_off", now_s, reason=reason)
            self._reconsider()
        if not self.phase.over and (reason := why_fail(self, now_s)):
            self._move(Phase.FAILED, reason)

    def take_events(self) -> list[Event]:
        """What happened since the last call."""
        events, self._events = self._events, []
        return events

    # Decisions.

    def _reconsider(self) -> None:
        """Draws the consequences of any change.  Idempotent."""
        if self.phase.over:
            if not self.members.count(Role.PS) and (totals := self.accounts.last_word()):
                self._note("accounts", **account_facts(totals))
            return
        table = tuple(PsEntry(m.index, m.address, m.incarnation) for m in self.members.live(Role.PS))
        if self.phase is not Phase.FORMING and table != self.view.ps:
            gone = sorted(e.index for e in set(self.view.ps) - set(table))
            self._move(Phase.FORMING, f"ps {listed(gone)} lost")
        before, self.chief = self.chief, next_chief(self)
        if self.chief not in (None, before):
            self._note("chief", worker=self.chief)
            self.turns.rounds.revision += 1  # what the one before it should have closed is its turn now
        if self.phase is Phase.FORMING:
            self._form(table)
        if self.phase is Phase.TRAINING and not self.turns.rounds.unsettled and (reason := why_drain(self)):
            self._move(Phase.DRAINING, reason)
        self.turns.look(self.members.workers, min(self.job.min_workers, self.members.count(Role.WORKER)), self.chief)

    def _form(self, table: tuple[PsEntry, ...]) -> None:
        if missing := what_is_missing(self):
            self.reason = missing
        else:
            self.view = View(self.view.number + 1, table)
            self.pace.begin(self.members.live(Role.WORKER))
            self.worker_beats.begin(self.view.number)
            self._note("view", number=self.view.number, ps=" ".join(e.address for e in table))
            self._move(Phase.PREPARING, f"view {self.view.number} is complete")

    def _move(self, phase: Phase, reason: str) -> None:
        if phase not in MOVES[self.phase]:
            raise ValueError(f"illegal move {self.phase} -> {phase} ({reason}); the phase was: {self.reason}")
        self._note("phase", was=self.phase, now=phase, reason=reason)
        self.phase, self.reason = phase, reason
        if phase is not Phase.TRAINING:
            self.turns.rounds.end()

    def _admit(self, join: Join, incarnation: int, now_s: float) -> Member:
        places = (join.role, join.index, join.address, join.health_address)
        member = self.members.admit(Member(*places, join.join_id, incarnation, now_s, now_s, now_s), now_s)
        self._note("member_joined", member=member.name, address=member.address, incarnation=member.tag)
        self.absence.back(member)
        self.strangers.forget(member.role, member.index)
        if member.role is Role.WORKER:
            self.specs = self.specs or join.specs
            self.fence.admit(incarnation)
            if self.view.number:
                self.pace.admit(member)
            if self.phase is Phase.DRAINING:
                self.worker_beats.rest(incarnation)
        return member

    def _forget(self, member: Member, event: str, now_s: float, reason: str, kind: LeaveKind | None = None) -> None:
        """Drops what was kept for a member that is gone."""
        said = {} if kind is None else {"kind": kind}
        self._note(event, member=member.name, incarnation=member.tag, **said, reason=reason)
        if not self.phase.over:
            self.departures.add(member, now_s, reason, kind)
            if not self.members.workers() and member.role is Role.WORKER and kind is not LeaveKind.FATAL:
                self._note("no_workers", reason=f"the job waits until one joins; {member.name} was the last")
        self._told.forget(member.incarnation)
        self.traffic.forget(member.incarnation)
        if self.view.number and (member.role is Role.PS or event == "member_lost"):
            self.absence.lost(member, now_s)
        if member.role is Role.PS:
            self.ps_beats.pop(member.incarnation, None)
        else:
            self.fence.remove(member.incarnation)
            self.worker_beats.forget(member.incarnation)
            self.turns.lose(member.incarnation, member.index)
            self.pace.remove(member, now_s)
            if self.view.number == 0 and not self.members.live(Role.WORKER):
                self.specs = None  # nothing was made from them yet: another model may come

    def _answer(self, member: Member) -> Answer:
        standing = standing_of(self, member)
        return Answer(member.incarnation, standing, self._told.tell(member.incarnation, standing), self.pace.floor)

    def _note(self, name: str, **facts: object) -> None:
        self._events.append(Event(name, facts))
