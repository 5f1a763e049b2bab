"""All that the coordinator knows of its job.

Here is what is kept for each member: begun when it joins, updated by its heartbeats, dropped when it goes.  The
Coordinator, transitions.py and steered.py change the rest.  The rules (lifecycle.py) and the answers (answers.py) read
the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from psruntime.config import JobConfig
from psruntime.core.accounting.accounts import Accounts, RefusedPushes
from psruntime.core.accounting.traffic import TrafficRates
from psruntime.core.clocks.adaptive_bound import AdaptiveBound
from psruntime.core.clocks.pace import Pace
from psruntime.core.coordinator.chief import ChiefProgress, Reliefs
from psruntime.core.coordinator.ending import DrainTimer, StopRequests
from psruntime.core.members.departures import Departures, GracePeriods, RepeatedFailures
from psruntime.core.members.joins import RefusedJoins
from psruntime.core.members.membership import JudgedClock, Member, Membership, Role
from psruntime.core.members.messages import FailedSaves, Instructions, Join, Measurements, PsBeat, WorkerBeat
from psruntime.core.members.view import UNKNOWN, Fence, Past, Phase, PsEntry, View
from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.plan.identity import UNSAID, ModelIdentity
from psruntime.core.rounds.past_round import RoundPart
from psruntime.core.rounds.shares import Shares
from psruntime.core.rounds.sync_rounds import SyncRounds
from psruntime.core.shards.shards import Shards
from psruntime.core.steering.commands import Overrides
from psruntime.core.steering.steering import Steering


class Unbuilt:
    """late: workers, by index, that step and are not ready.  failed: the first of them that cannot build it, and why.

    It is asked at every word of a member while workers build, and goes through all of them only where something of it
    has changed.
    """

    def __init__(self) -> None:
        self.late: list[int] = []
        self.failed: tuple[int, str] | None = None
        self._seen: tuple[object, ...] = ()

    def look(self, mode: str, number: int, members: Membership, beats: WorkerBeats) -> None:
        """mode: that comes; empty if no worker builds for one.  number: of the change, as in Barrier.builds."""
        now = (mode, number, beats.graphs_revision, beats.stopped, members.count(Role.WORKER))
        if now == self._seen:
            return
        self._seen, self.late, self.failed = now, [], None
        for worker in members.live(Role.WORKER) if mode else ():
            graphs = beats.get(worker.incarnation).graphs
            if graphs.serve(mode) or beats.has_stopped(worker.incarnation):
                continue
            self.late.append(worker.index)
            if graphs.failure and graphs.failed_build == number and self.failed is None:
                self.failed = worker.index, graphs.failure


_NONE = WorkerBeat()


class WorkerBeats:
    """By incarnation.  Every question costs the same, however many workers there are.

    Law: a worker that has stopped, or that joined while the view drained, does not step while it drains.
    """

    def __init__(self) -> None:
        self.graphs_revision = 0  # grows whenever a worker that steps may lack another graph than before
        self._beats: dict[int, WorkerBeat] = {}
        self._stopped: set[int] = set()

    def take(self, incarnation: int, beat: WorkerBeat, view: int, draining: bool) -> WorkerBeat:
        """Keeps a heartbeat that arrived in the view of this number, and returns it as it counts.

        A heartbeat that steps while the job drains, of a worker that had stopped, is out of date.
        """
        if draining and incarnation in self._stopped:
            beat = replace(beat, stopped=True)
        elif beat.stopped and beat.view == view:
            self._stopped.add(incarnation)
        else:
            self._stopped.discard(incarnation)
        self.graphs_revision += beat.graphs != self.get(incarnation).graphs
        self._beats[incarnation] = beat
        return beat

    def stop(self, incarnation: int) -> None:
        """Marks a worker as stopped, which has joined while the view drains."""
        self._stopped.add(incarnation)

    def get(self, incarnation: int) -> WorkerBeat:
        """The latest heartbeat; an empty one of a worker that has sent none."""
        return self._beats.get(incarnation, _NONE)

    def has_stopped(self, incarnation: int) -> bool:
        """Whether the worker takes no further step in the view, whatever it did in an older one."""
        return incarnation in self._stopped

    @property
    def stopped(self) -> int:
        """The number of workers that have stopped."""
        return len(self._stopped)

    def begin(self, view: int) -> None:
        """Begins a view, in which workers step again that had stopped before it."""
        self.graphs_revision += 1
        self._stopped = {inc for inc, beat in self._beats.items() if beat.stopped and beat.view == view}

    def forget(self, incarnation: int) -> None:
        """Removes a worker that is gone."""
        self._beats.pop(incarnation, None)
        self.graphs_revision += 1
        self._stopped.discard(incarnation)


class JobState:
    """The state, with the coordinator's clock.  `note(name, **facts)` takes what an operator wants to read."""

    def __init__(self, job: JobConfig, now_s: float, note: Callable[..., None]) -> None:
        self.job = job
        self.note = note
        self.news = False  # whether the instructions of any member may have changed
        self.clock = clock = JudgedClock(now_s, longest_gap_s=job.lease_s / 2)

        # What the job is doing.
        self.phase = Phase.FORMING
        self.reason = "no ps has joined yet"  # of the phase
        self.view = View()
        self.restore = False  # whether the next view goes back to the checkpoint instead of adopting what its ps hold

        # Who is there.
        self.members = Membership(job.lease_s, clock)
        self.had_workers = False  # when this was last looked at
        self.instructions: dict[int, tuple[Instructions, int]] = {}  # by incarnation: the latest, and their revision
        self.chief: int | None = None  # worker index
        self.reliefs = Reliefs(clock)
        self.chief_progress = ChiefProgress(job, clock)
        self.fence = Fence()
        self.ps_beats: dict[int, PsBeat] = {}  # by incarnation
        self.worker_beats = WorkerBeats()
        self.unbuilt = Unbuilt()
        self.grace = GracePeriods(job, clock)
        self.departures = Departures()
        self.failures = RepeatedFailures(job.ps_timeout_s, clock)
        self.refused_joins = RefusedJoins(note)

        # How the training goes.
        self.specs: tuple[VariableSpec, ...] | None = None  # of the model; None before the first worker
        self.identity: ModelIdentity | None = None  # of the model; None as `specs`
        self.versions = UNSAID  # of psruntime and TensorFlow, of every member; UNSAID before the first
        self.past = UNKNOWN  # of the job, under earlier coordinators too
        self.saved_at_s: float | None = None  # real time since when this coordinator knows the newest checkpoint
        self.failed_saves = FailedSaves()  # of the chief, since the newest checkpoint
        self.held_out = Measurements()  # the latest that a chief has reported
        self.early_stop = ""  # why the job ends before its limit, by a held-out metric; empty: it does not
        self.global_step = 0
        self.began_at: int | None = None  # the global step from which this coordinator's first view went on
        self.steps_lost = 0
        self.pace = Pace(job, clock)
        self.shards = Shards(job.epochs, note)
        shares = Shares() if job.has_shares else None
        self.sync = SyncRounds(  # mode sync
            job.round_warn_s, note, clock, job.train_steps, job.backup_workers, shares, self._count
        )
        self.drain_timer = DrainTimer(job.drain_timeout_s, clock)
        self.stop = StopRequests(job.stop_grace_s, clock)
        self.schedule = job.mode_schedule
        ranged = job.bound_range
        self.adaptive_bound = AdaptiveBound(ranged, job.heartbeat_s, note, clock) if ranged else None
        is_automatic = self.schedule is not None or self.adaptive_bound is not None
        self.steering = Steering(Overrides(mode=job.mode, bound=job.bound, automatic=is_automatic), note)

        # What has moved, and what became of it.
        self.accounts = Accounts()
        self.refused_pushes = RefusedPushes()
        self.traffic = TrafficRates(job.ps, job.lease_s, note, some_empty=job.min_ps_bytes > 0)

    def _count(self, part: RoundPart) -> None:
        """A part of a round is in the variables."""
        self.shards.applied(part.incarnation, part.shard_batches)

    def note_saved(self, saved_step: int | None) -> None:
        """Its chief says of which global step the newest checkpoint is; None: there is none."""
        if saved_step != self.past.saved_step or self.saved_at_s is None:
            self.saved_at_s = None if saved_step is None else self.clock.real_s

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

    def is_free(self, index: int) -> bool:
        """Whether a worker of this index may join."""
        return index < self.job.max_workers and self.members.holder(Role.WORKER, index) is None

    def admit(self, join: Join, incarnation: int) -> Member:
        """Adds a member, and begins what is kept for it."""
        who_and_where = (join.role, join.index, join.address, join.health_address)
        member = self.members.admit(Member(*who_and_where, join.join_id, incarnation))
        self.note("member_joined", member=member.name, address=member.address, incarnation=member.tag)
        self.grace.back(member)
        self.refused_joins.forget(member.role, member.index)
        self.shards.number_from(incarnation)
        self.sync.admit(incarnation, join.machine, join.began_at)
        self.versions = self.versions if self.versions.facts else join.identity.versions
        if member.role is Role.WORKER:
            self.failures.joined(member.index)
            self.specs = self.specs or join.variables
            self.identity = self.identity or join.identity
            self.fence.admit(incarnation)
            if self.view.number:
                self.pace.admit(member)
            if self.phase is Phase.DRAINING:
                self.worker_beats.stop(incarnation)
        self._adopt(join.past)
        return member

    def take_ps_beat(self, ps: Member, beat: PsBeat) -> None:
        """A fence revision above the instructions of the ps is from an earlier coordinator, and counts as 0."""
        if beat.fence_revision > self.instructions[ps.incarnation][0].fence_revision:
            beat = replace(beat, fence_revision=0)
        before = self.ps_beats.get(ps.incarnation, PsBeat())
        self.ps_beats[ps.incarnation] = beat
        self.news |= beat.fence_revision != before.fence_revision
        self.refused_pushes.update(ps.index, beat.stats)

    def take_worker_beat(self, worker: Member, beat: WorkerBeat) -> None:
        incarnation, before = worker.incarnation, self.worker_beats.get(worker.incarnation)
        beat = self.worker_beats.take(incarnation, beat, self.view.number, self.phase is Phase.DRAINING)
        self.news |= (beat.stopped, beat.view) != (before.stopped, before.view)
        if beat.view == self.view.number:
            if beat.stopped and self.phase is Phase.TRAINING:
                self.shards.lose(incarnation, f"{worker.name} has stopped")
            self.chief_progress.stepped(incarnation, beat.steps)
            self.pace.report(worker, beat.steps, beat.stopped)
            self.pace.set_starved(worker, beat.steps, beat.starve_count)
        if beat.saved_step is not None and worker.index == self.chief and self.trained_in(beat.view):
            self.note_saved(beat.saved_step)
            self.past = self.past.saved(beat.saved_step)
            self.chief_progress.saved(beat.saved_step)
        if worker.index == self.chief:
            # What has not changed may be from before another was chief.
            if beat.failed_saves != before.failed_saves:
                self.failed_saves = beat.failed_saves
            if self.held_out.last is None or beat.held_out != before.held_out:
                self.held_out = beat.held_out
        self.early_stop = self.early_stop or beat.early_stop

    def _adopt(self, past: Past) -> None:
        """Takes what a member knows of the job's past.  From its first view on the coordinator knows it all itself."""
        if self.view.number == 0:
            self.past = self.past.and_of(past)
            self.identity = self.past.identity or self.identity
            self.sync.rounds.raise_attempt(self.past.attempt)
            self.steering.restore(self.past.settings)
            self.pace.rebound(self.steering.settings.bound)
            if self.past.began:
                self.grace.expect(set(range(self.job.ps)) - {ps.index for ps in self.members.live(Role.PS)})

    def forget(self, member: Member, was_lost: bool) -> None:
        """Drops what is kept for a member that is gone.  was_lost: without a word."""
        self.instructions.pop(member.incarnation, None)
        self.stop.forget(member.incarnation)
        self.traffic.forget(member.incarnation)
        if self.view.number and (member.role is Role.PS or was_lost):
            self.grace.lost(member)
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
        self.pace.remove(member)
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
