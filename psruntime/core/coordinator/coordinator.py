"""The coordinator: one state machine over membership, views, phases, clocks, rounds and the fence.

It has one method for each input.  A method answers what the caller shall do, and why.  Time (`now_s`) and random
incarnation numbers are arguments.  Its owner calls it from one thread.

What comes of an input is in transitions.py; what to change is decided by the rules in lifecycle.py.

Law: a view is complete or void.  The loss of a ps voids it in any phase that is not over: back to FORMING.
Law: the variables of a view are used only between `report_prepared` and the loss of one of its ps.
Law: a worker pushes only when every ps of the view has written its incarnation into its admitted table.
Law: there is at most one chief, a live worker, and only its report moves PREPARING or DRAINING on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from psruntime.config import JobConfig
from psruntime.config.schedule import SYNC
from psruntime.core.clocks.clocks import ClockAnswer, ClockReport
from psruntime.core.coordinator import answers, lifecycle, steered, transitions
from psruntime.core.coordinator.job_state import JobState
from psruntime.core.members.joins import check_join, check_model, check_versions, other_versions
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
from psruntime.core.members.view import Phase, over_error
from psruntime.core.plan.identity import ModelIdentity, differences, in_a_line, remarks
from psruntime.core.rounds.round_messages import Action, ActionKind, Applied, Broken, Report
from psruntime.core.rounds.sync_rounds import Record
from psruntime.core.shards.shard_messages import ShardAnswer, ShardRequest
from psruntime.core.steering.commands import Command, Reply
from psruntime.errors import ModelDiffersError, OtherJobError, ReplacedError


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
    """See the module.  After any input, `take_effects` returns what it means for others.

    All but `join`, `leave` and `confirm_lost` raise ReplacedError if the given incarnation is not a member.
    """

    def __init__(self, job: JobConfig, now_s: float) -> None:
        self._events: list[Event] = []
        self.state = JobState(job, now_s, self._note)

    # Membership.

    def join(self, join: Join, new_incarnation: int, now_s: float) -> Answer | NotYet:
        """Admits a process, or refuses it, or lets it wait.  A repeated join gets its first answer again.

        Raises:
            OtherJobError: the process serves another job.
            UsageError: index out of range, a loopback address among remote ones.
            IndexHeldError: the index belongs to a live process.
            ModelDiffersError: a worker's variables are not the job's, or what else its model is; or its versions, or
                those of a ps.
            JobDoneError, JobStoppedError, JobFailedError: the job is over.
        """
        state = self._at(now_s)
        if state.phase.over:
            raise over_error(state.phase, state.reason)
        try:
            check_join(join, state.job, state.members)
            self._prefer_the_past(join)
            if (join.role, join.index) == (Role.PS, 0) and not (state.view.number or state.past.identity):
                self._take_versions(join.identity)  # others may join while ps 0 imports TensorFlow
            check_versions(join, state.versions)
            if join.role is Role.WORKER:
                check_model(join, state.specs, state.identity)
        except OtherJobError as error:
            state.refused_joins.add(join, error)
            raise
        except ModelDiffersError as error:
            if join.role is Role.PS:
                state.refused_joins.add(join, error)
            elif state.is_free(join.index):
                state.failures.ended(join.index, str(error))
            raise
        claim = state.members.claim(join.role, join.index, join.join_id, join.waited_s)
        if isinstance(claim, Busy):
            return NotYet(claim.reason, claim.holder.tag, claim.holder)
        if claim is None:
            claim = state.admit(join, new_incarnation)
        transitions.reconsider(state)
        answer = answers.answer(state, claim)
        remark = in_a_line(remarks(join.identity, state.identity, "the job")) if state.identity else ""
        return replace(answer, remark=remark)

    def heartbeat(self, role: Role, index: int, incarnation: int, beat: PsBeat | WorkerBeat, now_s: float) -> Answer:
        """Renews a lease, takes the member's facts, answers its instructions."""
        state = self._at(now_s)
        member = state.members.renew(state.members.get(role, index, incarnation))
        if isinstance(beat, PsBeat):
            state.take_ps_beat(member, beat)
        else:
            state.take_worker_beat(member, beat)
            if beat.failure and not state.phase.over:
                transitions.fail_in_order(state, f"{member.name}: {beat.failure}")
        if beat.asked_to_stop and state.stop.take(member, state.global_step):
            state.note("asked_to_stop", member=member.name)
        if beat.stood_still_s:
            self._explain_silence(member, beat.stood_still_s)
        state.accounts.update(index, beat.stats)
        state.traffic.update(member, beat.stats, state.phase is Phase.TRAINING, state.clock.real_s)
        if state.phase.prepared and beat.view == state.view.number and state.mode != SYNC:
            state.global_step = max(state.global_step, beat.global_step)
        transitions.reconsider(state)
        return answers.answer(state, member)

    def answer(self, role: Role, index: int, incarnation: int) -> Answer:
        """A member's instructions without renewing its lease, for a long poll that ends."""
        return answers.answer(self.state, self.state.members.get(role, index, incarnation))

    def leave(self, role: Role, index: int, incarnation: int, kind: LeaveKind, reason: str, now_s: float) -> None:
        """Removes a member.  A repeated leave, or one of a replaced incarnation, changes nothing.

        NOT_JOINED as the incarnation: a worker ends before its join; with USAGE it is not started again.
        """
        state = self._at(now_s)
        if incarnation == NOT_JOINED:
            self._end_unjoined(role, index, kind, reason)
            return
        try:
            member = state.members.get(role, index, incarnation)
        except ReplacedError:
            return
        transitions.remove(state, member, "member_left", reason, kind)
        if kind is LeaveKind.FATAL and not state.phase.over and not state.stop.fails:
            transitions.move(state, Phase.FAILED, f"{member.name}: {reason}")
        transitions.reconsider(state)

    def starts(self, index: int, now_s: float) -> None:
        """A worker is started, and joins when it is ready.  It changes nothing if a member has its index."""
        state = self._at(now_s)
        if state.is_free(index):
            state.failures.starts(index)

    def confirm_lost(self, incarnation: int, now_s: float) -> None:
        """The process of this incarnation is certainly gone: its lease ends now."""
        state = self._at(now_s)
        for member in [*state.members.live(Role.PS), *state.members.live(Role.WORKER)]:
            if member.incarnation == incarnation:
                transitions.remove(state, member, "member_lost", "nothing listens at its address")
        transitions.reconsider(state)

    # Training.

    def report_clock(self, report: ClockReport, now_s: float) -> ClockAnswer:
        """Takes a worker's clock.  A late or repeated report, or one for another view, changes nothing."""
        state = self._at(now_s)
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
            ReplacedError: it reports to have closed a round that another worker closes by itself.
        """
        state = self._at(now_s)
        sync = state.sync
        state.members.get(Role.WORKER, index, incarnation)
        if isinstance(report, Applied | Broken) and sync.rounds.is_closing(report):
            lifecycle.require_closer(state, index)
        if state.mode == SYNC and state.trains_in(view):
            sync.take(incarnation, index, report, starved_since)
            state.global_step = sync.rounds.global_step
            if isinstance(report, Broken) and sync.rounds.tears(report):
                state.restore = True
                transitions.move(
                    state, Phase.FORMING, f"round {report.round} is torn: {report.reason}; back to the last checkpoint"
                )
            transitions.reconsider(state)
        return self.action_of(index, incarnation)

    def action_of(self, index: int, incarnation: int) -> Action:
        """A worker's next action, for a long poll that ends."""
        self.state.members.get(Role.WORKER, index, incarnation)
        action = self.state.sync.rounds.action_of(incarnation, self.state.chief)
        if action.kind is ActionKind.WAIT and self.state.sync.rounds.is_wanted_closed:
            return replace(action, reason=steered.pause_of(self.state)[1])
        return action

    def take_shard(self, request: ShardRequest, now_s: float) -> ShardAnswer:
        """Takes a worker's report on its data shards, and returns the next one.

        Raises:
            UsageError: its input is cut otherwise than that of the other workers.
        """
        state = self._at(now_s)
        state.members.get(Role.WORKER, request.worker_index, request.incarnation)
        state.shards.agree(request.sharding)
        state.shards.hear(request.incarnation, request.news)
        transitions.reconsider(state)
        return self.shard(request)

    def shard(self, request: ShardRequest) -> ShardAnswer:
        """The next shard for a worker, for a long poll that ends.  While the job does not train there is none."""
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
            ReplacedError: it is not the chief.
        """
        state = self._at(now_s)
        chief = lifecycle.require_chief(state, index, incarnation)
        if state.phase is Phase.PREPARING and view == state.view.number:
            lost = max(prepared.steps_lost, state.global_step - prepared.global_step)
            state.note_saved(prepared.saved_step)
            state.past = state.past.saw(state.global_step).prepared(prepared.global_step, prepared.saved_step)
            state.steps_lost, state.global_step = state.steps_lost + lost, prepared.global_step
            state.began_at = prepared.global_step if state.began_at is None else state.began_at
            state.note("prepared", view=view, global_step=state.global_step, steps_lost=lost)
            state.restore = False
            if prepared.position is not None:
                state.shards.restore(prepared.position)
                state.note("position", **prepared.position.facts)
            state.chief_progress.prepared(prepared.global_step)
            state.reliefs.forget_all()
            state.sync.prepared(state.view, state.mode, prepared.global_step, prepared.attempt, state.job.of_rounds)
            transitions.move(state, Phase.TRAINING, f"view {view} was prepared by worker {index}")
        transitions.reconsider(state)
        return answers.answer(state, chief)

    def report_obstacle(self, index: int, incarnation: int, view: int, obstacle: str, now_s: float) -> Answer:
        """The chief cannot prepare the view: another worker becomes chief.  Otherwise as `report_prepared`."""
        state = self._at(now_s)
        chief = lifecycle.require_chief(state, index, incarnation)
        if state.phase is Phase.PREPARING and view == state.view.number:
            transitions.relieve(state, chief, obstacle)
        transitions.reconsider(state)
        return answers.answer(state, chief)

    def report_finished(self, index: int, incarnation: int, view: int, now_s: float) -> Answer:
        """The chief has written the last checkpoint: the job is done, or stopped.  Otherwise as `report_prepared`."""
        state = self._at(now_s)
        chief = lifecycle.require_chief(state, index, incarnation)
        if state.phase is Phase.DRAINING and view == state.view.number:
            if state.stop.fails or state.stop.cuts_short:
                state.past = state.past.saved(state.global_step)
                at = f"{state.stop.reason}, at global step {state.global_step}"
                transitions.stop_now(state, f"{at}; {lifecycle.newest_checkpoint(state)}")
            else:
                transitions.move(state, Phase.DONE, f"global step {state.global_step}")
        return answers.answer(state, chief)

    # An operator's commands.

    def control(self, command: Command, now_s: float) -> Reply:
        """Takes a command, or a repeat of it; `control_reply` has its outcome.

        Raises:
            UsageError: it cannot be carried out in this job.
            JobDoneError, JobStoppedError, JobFailedError: the job is over.
        """
        state = self._at(now_s)
        steered.take(state, command)
        transitions.reconsider(state)
        return self.control_reply(command.request_id)

    def control_reply(self, request_id: str) -> Reply:
        """What has become of a request that was taken."""
        return steered.reply(self.state, request_id)

    # Time, and what comes of all this.

    def advance(self, now_s: float) -> None:
        """Ends the leases and limits that are over, as every input does first.  A regular tick calls it."""
        self._at(now_s)

    def take_effects(self) -> Effects:
        """What the inputs since the last call mean for others than their callers."""
        state = self.state
        events, self._events = tuple(self._events), []
        news, state.news = state.news or bool(events), False
        return Effects(
            events,
            tuple(state.sync.take_records()),
            news,
            state.sync.rounds.revision,
            (state.shards.revision, state.phase),
            frozenset(state.pace.stragglers.take_news()),
        )

    # Parts of the inputs.

    def _at(self, now_s: float) -> JobState:
        """The state at this time."""
        self.state.clock.advance(now_s)
        transitions.judge(self.state)
        return self.state

    def _prefer_the_past(self, join: Join) -> None:
        """Before the first view, who knows the job's model from an earlier coordinator is right about it: workers of
        another, and members with other versions, that were here before it are removed, and are refused when they ask
        again."""
        state, known = self.state, join.past.identity
        if state.view.number or known is None or state.past.identity:
            return
        self._take_versions(known)
        if state.identity in (None, known):
            return
        difference = next(differences(state.identity, known, "the job"), "")
        for member in state.members.live(Role.WORKER) if difference else []:
            transitions.remove(state, member, "cut_off", f"it has another model than the job: {difference}")

    def _take_versions(self, known: ModelIdentity) -> None:
        """These versions are the job's; members with others are removed."""
        state = self.state
        if difference := other_versions(state.versions, known):
            for member in [*state.members.live(Role.PS), *state.members.live(Role.WORKER)]:
                transitions.remove(state, member, "cut_off", f"it has other versions than the job: {difference}")
            state.versions = known.versions

    def _explain_silence(self, member: Member, still_s: float) -> None:
        """Notes for how long no Python ran in a member, also as the reason for which it was lost meanwhile."""
        state = self.state
        lease = f"--lease {state.job.lease_s:g}"
        why = f"no Python ran in its process for {still_s:.1f} s; its log has the cause ({lease})"
        state.note("python_stood_still", member=member.name, seconds=round(still_s, 1), reason=why)
        state.departures.explain(member.role, member.index, state.clock.real_s - still_s, why)

    def _end_unjoined(self, role: Role, index: int, kind: LeaveKind, reason: str) -> None:
        """Takes up that a worker has ended before its join, while no member has its index."""
        state, name = self.state, f"{role} {index}"
        if role is not Role.WORKER or state.phase.over or not state.is_free(index):
            return
        state.note("start_failed", member=name, kind=kind, reason=reason)
        state.departures.add(role, index, "", state.clock.real_s, reason, kind)
        if kind is LeaveKind.USAGE:
            state.failures.ended(index, reason)
        elif kind is LeaveKind.ERROR and not steered.is_paused_by_command(state):
            state.failures.add(name, reason)

    def _note(self, name: str, **facts: object) -> None:
        self._events.append(Event(name, facts))
