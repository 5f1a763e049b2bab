"""All that the coordinator knows of its job.

The Coordinator owns the state and is the only one that changes it.  Here is what is kept for each member: begun when it
comes, dropped when it goes.  The rules (lifecycle.py, instructions.py) and the status (status.py) read the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from psruntime.config import JobConfig
from psruntime.config.schedule import Schedule
from psruntime.core.accounting.accounts import Accounts
from psruntime.core.accounting.refused_pushes import RefusedPushes
from psruntime.core.accounting.traffic import TrafficRates
from psruntime.core.clocks.adaptive_bound import AdaptiveBound
from psruntime.core.clocks.pace import Pace
from psruntime.core.coordinator.chief_progress import ChiefProgress
from psruntime.core.coordinator.drain_timer import DrainTimer
from psruntime.core.coordinator.reliefs import Reliefs
from psruntime.core.coordinator.stop_requests import StopRequests
from psruntime.core.members.beats import WorkerBeats
from psruntime.core.members.departures import Departures
from psruntime.core.members.fence import Fence
from psruntime.core.members.grace_periods import GracePeriods
from psruntime.core.members.membership import Member, Membership, Role
from psruntime.core.members.messages import PsBeat
from psruntime.core.members.past import UNKNOWN, Past
from psruntime.core.members.refused_joins import RefusedJoins
from psruntime.core.members.repeated_failures import RepeatedFailures
from psruntime.core.members.unbuilt import Unbuilt
from psruntime.core.members.view import Phase, PsEntry, View
from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.plan.identity import ModelIdentity
from psruntime.core.rounds.past_round import Part
from psruntime.core.rounds.shares import Shares
from psruntime.core.rounds.sync_rounds import SyncRounds
from psruntime.core.shards.shards import Shards
from psruntime.core.steering.overrides import Overrides
from psruntime.core.steering.steering import Steering


class Timed(Protocol):
    """What moves on with the coordinator's time."""

    def advance(self, now_s: float, pause_s: float) -> None:
        """It is `now_s`; for `pause_s` of the time since the last call nobody looked, so that counts for nothing."""


class JobState:
    """The state at `now_s`.  `note(name, **facts)` takes what an operator wants to read."""

    def __init__(self, job: JobConfig, now_s: float, note: Callable[..., None]) -> None:
        self.job = job

        # What the job is doing.
        self.phase = Phase.FORMING
        self.reason = "no ps has joined yet"  # of the phase
        self.view = View()
        self.restore = False  # whether the next view goes back to the checkpoint instead of adopting what its ps hold

        # Who is there.
        self.members = Membership(job.lease_s, now_s)
        self.chief: int | None = None  # worker index
        self.reliefs = Reliefs()
        self.chief_progress = ChiefProgress(job)
        self.fence = Fence()
        self.ps_beats: dict[int, PsBeat] = {}  # by incarnation
        self.worker_beats = WorkerBeats()
        self.unbuilt = Unbuilt()
        self.grace = GracePeriods(job, now_s)
        self.departures = Departures()
        self.failures = RepeatedFailures(job.ps_timeout_s)
        self.refused_joins = RefusedJoins(note)

        # How the training goes.
        self.specs: tuple[VariableSpec, ...] | None = None  # of the model; None before the first worker
        self.identity: ModelIdentity | None = None  # of the model; None as `specs`
        self.past = UNKNOWN  # of the job, under earlier coordinators too
        self.saved_at_s: float | None = None  # since when this coordinator knows the newest checkpoint
        self.global_step = 0
        self.began_at: int | None = None  # the global step from which this coordinator's first view went on
        self.steps_lost = 0
        self.pace = Pace(job)
        self.shards = Shards(job.epochs, note)
        shares = Shares() if job.batch_policy == "throughput" else None
        self.sync = SyncRounds(  # mode sync
            job.round_warn_s, note, job.train_steps, job.backup_workers, shares, self._count
        )
        self.drain_timer = DrainTimer(job.drain_timeout_s)
        self.stop = StopRequests(job.stop_grace_s)
        self.schedule = Schedule.of(job.schedule)
        self.adaptive_bound = AdaptiveBound(job.bound_range, job.heartbeat_s, note) if job.bound_range else None
        is_automatic = self.schedule is not None or self.adaptive_bound is not None
        self.steering = Steering(Overrides(mode=job.mode, bound=job.bound, automatic=is_automatic), note)

        # What has moved, and what became of it.
        self.accounts = Accounts()
        self.refused_pushes = RefusedPushes()
        self.traffic = TrafficRates(job.ps, job.lease_s, note, some_empty=job.min_ps_bytes > 0)

        self.timed: list[Timed] = [
            self.sync, self.pace, self.grace, self.failures, self.chief_progress, self.drain_timer, self.stop,
            self.reliefs, *([self.adaptive_bound] if self.adaptive_bound else []),
        ]  # fmt: skip

    def _count(self, part: Part) -> None:
        """A part of a round is in the variables."""
        self.shards.applied(part.incarnation, part.shard_batches)

    def note_saved(self, saved_step: int | None, now_s: float) -> None:
        """Its chief says of which global step the newest checkpoint is; None: there is none."""
        if saved_step != self.past.saved_step or self.saved_at_s is None:
            self.saved_at_s = None if saved_step is None else now_s

    @property
    def mode(self) -> str:
        """By which steps are taken now: as the job was started, or as an operator has changed it since."""
        return self.steering.settings.mode

    @property
    def chief_member(self) -> Member | None:
        """The chief, if it is live."""
        return None if self.chief is None else self.members.holder(Role.WORKER, self.chief)

    def live_ps(self) -> tuple[PsEntry, ...]:
        """The live ps as entries of a view."""
        return tuple(PsEntry(ps.index, ps.address, ps.incarnation) for ps in self.members.live(Role.PS))

    def admit(self, member: Member, specs: tuple[VariableSpec, ...], identity: ModelIdentity) -> None:
        """Begins what is kept for a member.  specs, identity: of the model, from a worker."""
        self.grace.back(member)
        self.refused_joins.forget(member.role, member.index)
        self.shards.number_from(member.incarnation)
        if member.role is Role.WORKER:
            self.failures.joined(member.index)
            self.specs = self.specs or specs
            self.identity = self.identity or identity
            self.fence.admit(member.incarnation)
            if self.view.number:
                self.pace.admit(member)
            if self.phase is Phase.DRAINING:
                self.worker_beats.stop(member.incarnation)

    def adopt(self, past: Past) -> None:
        """Takes what a member knows of the job's past.  From its first view on the coordinator knows it all itself."""
        if self.view.number == 0:
            self.past = self.past.and_of(past)
            self.identity = self.past.identity or self.identity
            self.sync.rounds.raise_attempt(self.past.attempt)
            self.steering.restore(self.past.settings)
            self.pace.rebound(self.steering.settings.bound)
            if self.past.began:
                self.grace.expect(set(range(self.job.ps)) - {ps.index for ps in self.members.live(Role.PS)})

    def forget(self, member: Member, now_s: float, was_lost: bool) -> None:
        """Drops what is kept for a member that is gone.  was_lost: without a word."""
        self.stop.forget(member.incarnation)
        self.traffic.forget(member.incarnation)
        if self.view.number and (member.role is Role.PS or was_lost):
            self.grace.lost(member, now_s)
        if member.role is Role.PS:
            self.ps_beats.pop(member.incarnation, None)
            self.sync.processes.pop(member.incarnation, None)
            return
        self.reliefs.forget(member.incarnation)
        self.chief_progress.forget(member.incarnation)
        self.fence.remove(member.incarnation)
        self.worker_beats.forget(member.incarnation)
        self.sync.lose(member.incarnation, member.index)
        self.shards.lose(member.incarnation, f"{member.name} is gone")
        self.pace.remove(member, now_s)
        if not self.members.live(Role.WORKER):
            self.shards.release_all()
            if self.view.number == 0:
                self.specs = None  # nothing was made from them yet: another model may come
                self.identity = self.past.identity

    @property
    def has_begun(self) -> bool:
        """Whether a view was prepared, by this coordinator or an earlier one."""
        return self.view.number > 0 or self.past.began

    @property
    def workers_needed(self) -> int:
        """How many workers have to be members for a view to form."""
        return 1 if self.has_begun else self.job.min_workers

    def trained_in(self, view: int) -> bool:
        """Whether the variables may be used, and are those of the view of this number."""
        return self.phase.prepared and self.view.number == view

    def trains_in(self, view: int) -> bool:
        """Whether the job trains, and in the view of this number."""
        return self.phase is Phase.TRAINING and self.view.number == view
