"""The coordinator: one state machine over membership, views, phases, clocks, rounds and the fence.

It has one method for each input.  A method answers what the caller shall do, and why.  Time (`now_s`) and random
incarnation numbers are arguments.  Its owner calls it from one thread.

The Coordinator alone changes the state (job_state.py); what to change is decided by the rules in lifecycle.py.

Law: a view is complete or void.  The loss of a ps voids it in any phase that is not over: back to FORMING.
Law: the variables of a view are used only between `report_prepared` and the loss of one of its ps.
Law: a worker pushes only when every ps of the view has written its incarnation into its admitted table.
Law: there is at most one chief, a live worker, and only its report moves PREPARING or DRAINING on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from psruntime.config import JobConfig
from psruntime.core.accounting.accounts import account_facts
from psruntime.core.clocks.clock_messages import ClockAnswer, ClockReport
from psruntime.core.coordinator import steered
from psruntime.core.coordinator.instructions import InstructionRevisions, instructions_for, written_here
from psruntime.core.coordinator.job_state import JobState
from psruntime.core.coordinator.join_checks import check_join, check_model
from psruntime.core.coordinator.lifecycle import (
    all_stopped,
    can_save,
    drain_wait,
    newest_checkpoint,
    next_chief,
    overdue_checkpoint,
    preparation,
    require_chief,
    require_closer,
    what_is_missing,
    whom_to_cut_off,
    why_drain,
    why_fail,
    why_not_prepared,
    why_relieve,
    why_stop,
    why_stopped,
)
from psruntime.core.members.membership import Busy, Member, Role
from psruntime.core.members.messages import (
    NOT_JOINED,
    Answer,
    Event,
    Join,
    LeaveKind,
    NotYet,
    Prepared,
    PsBeat,
    WorkerBeat,
)
from psruntime.core.members.view import MOVES, Phase, View, listed, over_error
from psruntime.core.plan.identity import differences, in_a_line, remarks
from psruntime.core.rounds.round_messages import Action, ActionKind, Applied, Broken, Report
from psruntime.core.rounds.sync_rounds import Record
from psruntime.core.shards.shard_messages import ShardAnswer, ShardRequest
from psruntime.core.steering.commands import Command, Reply
from psruntime.errors import ModelDiffersError, ReplacedError


@dataclass(frozen=True)
class Effects:
    """What the inputs since the last `take_effects` mean for others than the callers.

    news: whether the instructions of any member may have changed.
    actions_revision: has changed if the next action of any worker may have.
    shards_revision: has changed if a worker that waits for a data shard may get one, or none will come in this phase.
    stragglers: workers, by index, that others may soon wait for; their instructions have changed.
    """

    events: tuple[Event, ...]  # for the log
    records: tuple[Record, ...]  # for the record of the rounds
    news: bool
    actions_revision: int
    shards_revision: tuple[int, Phase]
    stragglers: frozenset[int]


class Coordinator:
    """See the module.  After any input, `take_effects` returns what it means for others."""

    def __init__(self, job: JobConfig, now_s: float) -> None:
        self._events: list[Event] = []
        self._had_workers = False  # when this was last looked at
        self._news = False  # see Effects
        self._revisions = InstructionRevisions()
        self.state = JobState(job, now_s, self._note)

    # Membership.

    def join(self, join: Join, new_incarnation: int, now_s: float) -> Answer | NotYet:
        """Admits a process, or refuses it, or lets it wait.  A repeated join gets its first answer again.

        Raises:
            OtherJobError: the process serves another job.
            UsageError: index out of range, a loopback address among remote ones.
            IndexHeldError: the index belongs to a live process.
            ModelDiffersError: a worker's variables are not the job's, or what else its model is.
            JobDoneError, JobStoppedError, JobFailedError: the job is over.
        """
        state = self.state
        self.advance(now_s)
        if state.phase.over:
            raise over_error(state.phase, state.reason)
        with state.refused_joins.noted(join):
            check_join(join, state.job, state.members)
            self._prefer_the_past(join)
            if join.role is Role.WORKER:
                try:
                    check_model(join, state.specs, state.identity)
                except ModelDiffersError as error:
                    if self._is_free(join.index):
                        state.failures.ended(join.index, str(error))
                    raise
        claim = state.members.claim(join.role, join.index, join.join_id, join.waited_s)
        if isinstance(claim, Busy):
            return NotYet(claim.reason, claim.holder.tag, claim.holder)
        if claim is None:
            claim = self._admit(join, new_incarnation)
            state.adopt(join.past)
        self._reconsider()
        answer = self._answer(claim)
        remark = in_a_line(remarks(join.identity, state.identity, "the job")) if state.identity else ""
        return replace(answer, remark=remark)

    def heartbeat(self, role: Role, index: int, incarnation: int, beat: PsBeat | WorkerBeat, now_s: float) -> Answer:
        """Renews a lease, takes the member's facts, answers its instructions.

        Raises:
            ReplacedError: the incarnation is not a member.
        """
        state = self.state
        self.advance(now_s)
        member = state.members.get(role, index, incarnation)
        state.members.renew(member)
        if isinstance(beat, PsBeat):
            self._take_ps_beat(incarnation, beat)
            state.refused_pushes.update(index, beat.stats)
        else:
            beat = self._take_worker_beat(member, beat)
            if beat.saved_step is not None and index == state.chief and state.trained_in(beat.view):
                state.note_saved(beat.saved_step)
                state.past = state.past.saved(beat.saved_step)
                state.chief_progress.saved(beat.saved_step)
        if isinstance(beat, WorkerBeat) and beat.failure and not state.phase.over:
            self._fail_in_order(f"{member.name}: {beat.failure}")
        if beat.asked_to_stop and state.stop.take(member, state.global_step):
            self._note("asked_to_stop", member=member.name)
        if beat.stood_still_s:
            self._explain_silence(member, beat.stood_still_s)
        state.accounts.update(index, beat.stats)
        state.traffic.update(member, beat.stats, state.phase is Phase.TRAINING, state.clock.real_s)
        if state.phase.prepared and beat.view == state.view.number and state.mode != "sync":
            state.global_step = max(state.global_step, beat.global_step)
        self._reconsider()
        return self._answer(member)

    def answer(self, role: Role, index: int, incarnation: int) -> Answer:
        """A member's instructions without renewing its lease, for a long poll that ends.

        Raises:
            ReplacedError: the incarnation is not a member.
        """
        return self._answer(self.state.members.get(role, index, incarnation))

    def leave(self, role: Role, index: int, incarnation: int, kind: LeaveKind, reason: str, now_s: float) -> None:
        """Removes a member.  A repeated leave, or one of a replaced incarnation, changes nothing.

        NOT_JOINED as the incarnation: a worker ends before its join; with USAGE it is not started again.
        """
        self.advance(now_s)
        if incarnation == NOT_JOINED:
            self._end_unjoined(role, index, kind, reason)
            return
        try:
            member = self.state.members.get(role, index, incarnation)
        except ReplacedError:
            return
        self._remove(member, "member_left", reason, kind)
        if kind is LeaveKind.FATAL and not self.state.phase.over and not self.state.stop.fails:
            self._move(Phase.FAILED, f"{member.name}: {reason}")
        self._reconsider()

    def starts(self, index: int, now_s: float) -> None:
        """A worker is started, and joins when it is ready.  It changes nothing if a member has its index."""
        self.advance(now_s)
        if self._is_free(index):
            self.state.failures.starts(index)

    def confirm_lost(self, incarnation: int, now_s: float) -> None:
        """The process of this incarnation is certainly gone: its lease ends now."""
        self.advance(now_s)
        members = self.state.members
        for member in [*members.live(Role.PS), *members.live(Role.WORKER)]:
            if member.incarnation == incarnation:
                self._remove(member, "member_lost", reason="nothing listens at its address")
        self._reconsider()

    # Training.

    def report_clock(self, report: ClockReport, now_s: float) -> ClockAnswer:
        """Takes a worker's clock.  A late or repeated report, or one for another view, changes nothing.

        Raises:
            ReplacedError: the incarnation is not a member.
        """
        state = self.state
        self.advance(now_s)
        member = state.members.get(Role.WORKER, report.worker_index, report.incarnation)
        if report.view != state.view.number:
            return ClockAnswer(0, f"the view is {state.view.number}, not {report.view}")
        state.pace.report(member, report.steps)
        return ClockAnswer(state.pace.floor, state.pace.waits_for(member))

    def next_action(
        self,
        index: int,
        incarnation: int,
        view: int,
        report: Report | None,
        now_s: float,
        starved_since: int | None = None,
    ) -> Action:
        """Mode sync: takes the report of a worker with a session on the view, and returns its next action.

        starved_since: as in Rounds.set_starved.

        Raises:
            ReplacedError: not a member, or it reports to have closed a round that another worker closes by itself.
        """
        state, sync = self.state, self.state.sync
        self.advance(now_s)
        state.members.get(Role.WORKER, index, incarnation)
        if isinstance(report, Applied | Broken) and sync.rounds.is_closing(report):
            require_closer(state, index)
        if state.mode == "sync" and state.trains_in(view):
            sync.take(incarnation, index, report, starved_since)
            state.global_step = sync.rounds.global_step
            if isinstance(report, Broken) and sync.rounds.tears(report):
                state.restore = True
                self._move(Phase.FORMING, f"round {report.round} is torn: {report.reason}; back to the last checkpoint")
            self._reconsider()
        return self.action_of(index, incarnation)

    def action_of(self, index: int, incarnation: int) -> Action:
        """A worker's next action, for a long poll that ends.

        Raises:
            ReplacedError: the incarnation is not a member.
        """
        self.state.members.get(Role.WORKER, index, incarnation)
        action = self.state.sync.rounds.action_of(incarnation, self.state.chief)
        if action.kind is ActionKind.WAIT and self.state.sync.rounds.is_wanted_closed:
            return replace(action, reason=steered.pause_of(self.state)[1])
        return action

    def take_shard(self, request: ShardRequest, now_s: float) -> ShardAnswer:
        """Takes a worker's report on its data shards, and returns the next one.

        Raises:
            ReplacedError: the incarnation is not a member.
            UsageError: its input is cut otherwise than that of the other workers.
        """
        state = self.state
        self.advance(now_s)
        state.members.get(Role.WORKER, request.worker_index, request.incarnation)
        state.shards.agree(request.sharding)
        state.shards.hear(request.incarnation, request.news)
        self._reconsider()
        return self.shard(request)

    def shard(self, request: ShardRequest) -> ShardAnswer:
        """The next shard for a worker, for a long poll that ends.  While the job does not train there is none.

        Raises:
            ReplacedError: the incarnation is not a member.
        """
        state = self.state
        member = state.members.get(Role.WORKER, request.worker_index, request.incarnation)
        if state.phase is not Phase.TRAINING or state.worker_beats.has_stopped(member.incarnation):
            return ShardAnswer(reason=f"nothing is read in phase {state.phase}")
        return state.shards.take(member.incarnation, request.seen)

    # The chief's reports.

    def report_prepared(self, index: int, incarnation: int, view: int, prepared: Prepared, now_s: float) -> Answer:
        """The chief has initialised, restored or adopted the variables of the view: training starts.

        A report for another view, or a repeated one, changes nothing.

        Raises:
            ReplacedError: not a member, or not the chief.
        """
        state = self.state
        self.advance(now_s)
        chief = require_chief(state, index, incarnation)
        if state.phase is Phase.PREPARING and view == state.view.number:
            lost = max(prepared.steps_lost, state.global_step - prepared.global_step)
            state.note_saved(prepared.saved_step)
            state.past = state.past.saw(state.global_step).prepared(prepared.global_step, prepared.saved_step)
            state.steps_lost, state.global_step = state.steps_lost + lost, prepared.global_step
            state.began_at = prepared.global_step if state.began_at is None else state.began_at
            self._note("prepared", view=view, global_step=state.global_step, steps_lost=lost)
            state.restore = False
            if prepared.position is not None:
                state.shards.restore(prepared.position)
                self._note("position", **prepared.position.facts)
            state.chief_progress.prepared(prepared.global_step)
            state.reliefs.forget_all()
            state.sync.prepared(state.view, state.mode, prepared.global_step, prepared.attempt, state.job.of_rounds)
            self._move(Phase.TRAINING, f"view {view} was prepared by worker {index}")
        self._reconsider()
        return self._answer(chief)

    def report_obstacle(self, index: int, incarnation: int, view: int, obstacle: str, now_s: float) -> Answer:
        """The chief cannot prepare the view: another worker becomes chief.  Otherwise as `report_prepared`."""
        state = self.state
        self.advance(now_s)
        chief = require_chief(state, index, incarnation)
        if state.phase is Phase.PREPARING and view == state.view.number:
            self._relieve(chief, obstacle)
        self._reconsider()
        return self._answer(chief)

    def report_finished(self, index: int, incarnation: int, view: int, now_s: float) -> Answer:
        """The chief has written the last checkpoint: the job is done, or stopped.  Otherwise as `report_prepared`."""
        state = self.state
        self.advance(now_s)
        chief = require_chief(state, index, incarnation)
        if state.phase is Phase.DRAINING and view == state.view.number:
            if state.stop.fails or state.stop.cuts_short:
                state.past = state.past.saved(state.global_step)
                at = f"{state.stop.reason}, at global step {state.global_step}"
                self._move(self._stopped_as, f"{at}; {newest_checkpoint(state)}")
            else:
                self._move(Phase.DONE, f"global step {state.global_step}")
        return self._answer(chief)

    # An operator's commands.

    def control(self, command: Command, now_s: float) -> Reply:
        """Takes a command, or a repeat of it; `control_reply` has its outcome.

        Raises:
            UsageError: it cannot be carried out in this job.
            JobDoneError, JobStoppedError, JobFailedError: the job is over.
        """
        self.advance(now_s)
        steered.take(self.state, command)
        self._reconsider()
        return self.control_reply(command.request_id)

    def control_reply(self, request_id: str) -> Reply:
        """What has become of a request that was taken."""
        return steered.reply(self.state, request_id)

    # Time, and what comes of all this.

    def advance(self, now_s: float) -> None:
        """Moves the time on: ends leases and timeouts.  Every input calls it, and so does a regular tick."""
        state = self.state
        state.clock.advance(now_s)
        state.pace.forget_gone()
        for member in state.members.end_leases():
            silent_s = state.clock.real_s - member.renewed_at_s
            self._forget(member, "member_lost", reason=f"silent for {silent_s:.1f} s")
        self._reconsider()
        self._cut_off()
        state.failures.trained(state.global_step)
        if not state.phase.over and (reason := why_fail(state)):
            self._move(Phase.FAILED, reason)

    def take_effects(self) -> Effects:
        """What the inputs since the last call mean for others than their callers."""
        pace, sync = self.state.pace, self.state.sync
        events, self._events = tuple(self._events), []
        news, self._news = self._news or bool(events), False
        return Effects(
            events,
            tuple(sync.take_records()),
            news,
            sync.rounds.revision,
            (self.state.shards.revision, self.state.phase),
            frozenset(pace.stragglers.take_news()),
        )

    # The only places where the state changes.

    def _reconsider(self) -> None:
        """Draws the consequences of any change.  Idempotent."""
        state = self.state
        if state.phase.over:
            if not state.members.count(Role.PS) and (totals := state.accounts.last_word()):
                late = {"late": state.sync.late} if state.job.backup_workers else {}
                self._note("accounts", **account_facts(totals), **late)
            return
        self._void_the_view_without_its_ps()
        if self._stop():
            return
        self._choose_the_chief()
        if state.phase is Phase.FORMING:
            self._form()
        fails = state.stop.fails and all_stopped(state)  # no worker is left to apply a round
        if state.phase is Phase.TRAINING and (fails or not state.sync.rounds.being_applied):
            reason = why_drain(state) or steered.why_drain(state)
            state.stop.cuts_short = bool(state.stop.reason and not reason)
            if reason := reason or state.stop.reason:
                self._move(Phase.DRAINING, reason)
        self._steer()
        needed = min(state.job.min_workers, state.members.count(Role.WORKER))
        state.sync.update(state.members.workers, needed, state.chief)
        self._note_the_loss_of_all_workers()

    def _steer(self) -> None:
        """Advances the commands of operators.  To and from mode sync the job continues in a view of its own."""
        state, was_sync = self.state, self.state.mode == "sync"
        self._news |= steered.steer(state)
        if (state.mode == "sync") != was_sync and state.phase is Phase.TRAINING:
            self._move(Phase.FORMING, f"mode {steered.mode_of(state)} from global step {state.global_step}")
            self._form()

    def _stop(self) -> bool:
        """Takes up that the job was asked to stop; returns whether it is over now."""
        state = self.state
        if not state.stop.reason and (reason := why_stop(state)):
            state.stop.begin(reason)
            state.drain_timer.hurry(state.job.stop_grace_s / 2)
            self._note("job_stopping", reason=reason, within_s=state.job.stop_grace_s)
        if reason := why_stopped(state):
            self._move(self._stopped_as, reason)
        return state.phase.over

    @property
    def _stopped_as(self) -> Phase:
        return Phase.FAILED if self.state.stop.fails else Phase.STOPPED

    def _fail_in_order(self, reason: str) -> None:
        """The job fails, once what was trained is saved, if it can be."""
        state = self.state
        if state.stop.fails:
            return  # its workers repeat it while they save, and after the loss of a ps
        if state.phase is Phase.DRAINING or can_save(state):
            state.stop.begin(reason, fails=True)
            state.drain_timer.hurry(state.job.stop_grace_s / 2)
            self._note("job_stopping", reason=reason, within_s=state.job.stop_grace_s)
        else:
            self._move(Phase.FAILED, reason)

    def _note_the_loss_of_all_workers(self) -> None:
        """Notes it once.  A job that drains waits for no other worker."""
        had, self._had_workers = self._had_workers, self.state.members.count(Role.WORKER) > 0
        if had and not self._had_workers and self.state.phase is not Phase.DRAINING:
            self._note("no_workers", reason="the last worker is gone; the job waits until one joins")

    def _void_the_view_without_its_ps(self) -> None:
        live = self.state.live_ps()
        if self.state.phase is not Phase.FORMING and live != self.state.view.ps:
            lost = sorted(ps.index for ps in set(self.state.view.ps) - set(live))
            self._move(Phase.FORMING, f"ps {listed(lost)} lost")

    def _choose_the_chief(self) -> None:
        state = self.state
        before, state.chief = state.chief, next_chief(state)
        if state.chief not in (None, before):
            self._note("chief", worker=state.chief)
            state.sync.rounds.revision += 1  # this chief closes what the one before should have closed

    def _form(self) -> None:
        """Forms the next view, or sets the reason to what it lacks."""
        state = self.state
        if missing := what_is_missing(state):
            state.reason = missing
            return
        state.view = View(state.view.number + 1, state.live_ps())
        state.pace.begin(state.members.live(Role.WORKER))
        state.worker_beats.begin(state.view.number)
        self._note("view", number=state.view.number, ps=" ".join(ps.address for ps in state.view.ps))
        self._move(Phase.PREPARING, f"view {state.view.number} is complete")

    def _move(self, phase: Phase, reason: str) -> None:
        state = self.state
        if phase not in MOVES[state.phase]:
            raise ValueError(f"illegal move {state.phase} -> {phase} ({reason}); the phase was: {state.reason}")
        self._note("phase", was=state.phase, now=phase, reason=reason)
        state.phase, state.reason = phase, reason
        if phase is not Phase.TRAINING:
            state.sync.rounds.end()
        if phase.over:
            steered.steer(state)

    def _take_ps_beat(self, incarnation: int, beat: PsBeat) -> None:
        state = self.state
        beat = written_here(beat, self._revisions.latest(incarnation))
        before, state.ps_beats[incarnation] = state.ps_beats.get(incarnation, PsBeat()), beat
        self._news |= beat.fence_revision != before.fence_revision

    def _take_worker_beat(self, member: Member, beat: WorkerBeat) -> WorkerBeat:
        """Returns what the beat counts as."""
        state, before = self.state, self.state.worker_beats.get(member.incarnation)
        beat = state.worker_beats.take(member.incarnation, beat, state.view.number, state.phase is Phase.DRAINING)
        self._news |= (beat.stopped, beat.view) != (before.stopped, before.view)
        if beat.view == state.view.number:
            if beat.stopped and state.phase is Phase.TRAINING:
                state.shards.lose(member.incarnation, f"{member.name} has stopped")
            state.chief_progress.stepped(member.incarnation, beat.steps)
            state.pace.report(member, beat.steps, beat.stopped)
            state.pace.set_starved(member, beat.steps, beat.starve_count)
        return beat

    def _admit(self, join: Join, incarnation: int) -> Member:
        state = self.state
        who_and_where = (join.role, join.index, join.address, join.health_address)
        member = state.members.admit(Member(*who_and_where, join.join_id, incarnation))
        self._note("member_joined", member=member.name, address=member.address, incarnation=member.tag)
        state.admit(member, join.specs, join.identity)
        state.sync.admit(incarnation, join.machine, join.began_at)
        return member

    def _prefer_the_past(self, join: Join) -> None:
        """Before the first view, who knows the job's model from an earlier coordinator is right about it: workers of
        another that were here before it are removed, and are refused when they ask again."""
        state, known = self.state, join.past.identity
        if state.view.number or known is None or state.past.identity or state.identity in (None, known):
            return
        difference = next(differences(state.identity, known, "the job"), None)
        for member in state.members.live(Role.WORKER) if difference else []:
            self._remove(member, "cut_off", reason=f"it has another model than the job: {difference}")

    def _relieve(self, chief: Member, reason: str) -> None:
        """Lets another worker be chief."""
        self.state.reliefs.add(chief, reason)
        self._note("relieved", worker=chief.index, reason=reason)
        self._reconsider()
        self.state.reason = why_not_prepared(self.state) or self.state.reason

    def _cut_off(self) -> None:
        """Removes a chief that is late, and the workers that the end of the job has waited for long enough."""
        state = self.state
        state.chief_progress.prepares(preparation(state))
        if steered.is_paused(state):
            state.chief_progress.pauses()
        elif state.chief_member and can_save(state):
            chief = state.chief_member.incarnation
            state.chief_progress.trains(state.global_step, chief, state.worker_beats.get(chief))
        else:
            state.chief_progress.reset()
        if (reason := overdue_checkpoint(state)) and state.chief_progress.is_news():
            self._note("checkpoint_overdue", worker=state.chief, reason=reason)
        if state.chief_member and (reason := why_relieve(state)):
            state.chief_progress.pass_over(state.chief_member)
            self._remove(state.chief_member, "cut_off", reason=reason)
            self._reconsider()
        timer = self.state.drain_timer
        timer.update(drain_wait(self.state))
        overdue = whom_to_cut_off(self.state)
        for member, reason in overdue:
            timer.cut_off(member, reason)
        for member, reason in overdue:
            self._remove(member, "cut_off", reason=reason)
            self._reconsider()

    def _explain_silence(self, member: Member, still_s: float) -> None:
        """Notes for how long no Python ran in a member, also as the reason for which it was lost meanwhile."""
        lease_s = self.state.job.lease_s
        why = f"no Python ran in its process for {still_s:.1f} s; its log has the cause (--lease {lease_s:g})"
        self._note("python_stood_still", member=member.name, seconds=round(still_s, 1), reason=why)
        self.state.departures.explain(member.role, member.index, self.state.clock.real_s - still_s, why)

    def _is_free(self, index: int) -> bool:
        """Whether a worker of this index may join."""
        return index < self.state.job.max_workers and self.state.members.holder(Role.WORKER, index) is None

    def _end_unjoined(self, role: Role, index: int, kind: LeaveKind, reason: str) -> None:
        """Takes up that a worker has ended before its join, while no member has its index."""
        state, name = self.state, f"{role} {index}"
        if role is not Role.WORKER or state.phase.over or not self._is_free(index):
            return
        self._note("start_failed", member=name, kind=kind, reason=reason)
        state.departures.add(role, index, "", state.clock.real_s, reason, kind)
        if kind is LeaveKind.USAGE:
            state.failures.ended(index, reason)
        elif kind is LeaveKind.ERROR and not steered.is_paused(state):
            state.failures.add(name, reason)

    def _remove(self, member: Member, event: str, reason: str, kind: LeaveKind | None = None) -> None:
        self.state.members.remove(member)
        self._forget(member, event, reason, kind)

    def _forget(self, member: Member, event: str, reason: str, kind: LeaveKind | None = None) -> None:
        """Drops what was kept for a member that is gone, and keeps why it went."""
        state = self.state
        said = {} if kind is None else {"kind": kind}
        self._note(event, member=member.name, incarnation=member.tag, **said, reason=reason)
        if not state.phase.over:
            state.departures.add(member.role, member.index, member.tag, state.clock.real_s, reason, kind)
            state.failures.left(member.role, member.index, reason, for_good=kind is LeaveKind.USAGE)
            if kind is LeaveKind.ERROR and not steered.is_paused(state):
                state.failures.add(member.name, reason)
        self._revisions.forget(member.incarnation)
        state.forget(member, was_lost=event == "member_lost")

    def _answer(self, member: Member) -> Answer:
        instructions = instructions_for(self.state, member)
        return Answer(member.incarnation, instructions, self._revisions.update(member.incarnation, instructions))

    def _note(self, name: str, **facts: object) -> None:
        self._events.append(Event(name, facts))
