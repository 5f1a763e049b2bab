"""What has been seen of a job: its latest status, its last minutes as numbers, its workers' rates, and its events.

Pure: it has no clock and no connection; its owner passes it each answer of the coordinator, and each failure, with the
time of day in seconds since 1970.  Memory is bounded: SAMPLES samples of a few numbers, EVENTS events, one status.
Belongs to one thread.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from psruntime.config import JobConfig
from psruntime.config.schedule import SYNC
from psruntime.core.members.job_status import Departure, JobStatus, MemberStatus
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import STALENESS_LIMITS
from psruntime.dashboard.job_events import IN_THE_LOG, JobEvent, events_between, gone_without_departure
from psruntime.observe.render import bound_of, mode_of

LOOKS = 8  # reports of a worker over which its rate is measured; between two heartbeats its count does not change


class WorkerRates:
    """The rates of the live workers, by incarnation.  Times are in seconds, of one clock."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {}  # (when it was reported, pushes)

    def observe(self, status: JobStatus, at_s: float) -> None:
        """Adds the next status; drops members that are gone."""
        stats = {member.incarnation: member for member in status.members if member.worker_stats}
        self._seen = {each: self._seen.get(each, deque(maxlen=LOOKS)) for each in stats}
        for incarnation, member in stats.items():
            assert member.worker_stats
            seen, said_s = self._seen[incarnation], at_s - member.silent_s
            if not seen or member.worker_stats.pushes != seen[-1][1] or said_s - seen[-1][0] > 0.5:
                seen.append((said_s, member.worker_stats.pushes))

    def steps_per_s(self, member: MemberStatus) -> float:
        """Pushes in a second; 0 while that is unknown."""
        seen = self._seen.get(member.incarnation)
        if not seen or seen[-1][0] <= seen[0][0]:
            return 0.0
        return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])

    def bytes_per_s(self, member: MemberStatus) -> tuple[float, float]:
        """(received, sent); 0 while that is unknown."""
        each, steps = member.worker_traffic, self.steps_per_s(member)
        return (each.received_per_step * steps, each.sent_per_step * steps) if each else (0.0, 0.0)


SAMPLES = 900  # a quarter of an hour, one a second
EVENTS = 500
WINDOW_S = 60.0  # of figures of the last minute
RATE_S = 5.0  # over which the global steps per second are measured: ps 0 reports its step every second
NAN = math.nan


@dataclass(frozen=True)
class PsSample:
    """Of one ps: bytes per second that it receives and sends, NaN where unknown, and bytes of variables."""

    received_per_s: float = NAN
    sent_per_s: float = NAN
    bytes_held: int = 0


@dataclass(frozen=True)
class Sample:
    """One status.  Losses are of the workers' last steps, NaN without one; clocks and leads are in steps.

    staleness: updates up to now by staleness, as WorkerStats.staleness_counts, of all workers that were seen.
    late: indices of the workers that others waited for.  after_absence: the coordinator did not answer before it.
    """

    at_s: float
    global_step: int
    steps_per_s: float
    examples_per_s: float
    loss: float
    loss_least: float
    loss_most: float
    floor: int
    lead_most: int
    bound: float  # NaN where there is none
    workers: int
    waiting: int
    staleness: tuple[int, ...] = ()
    late: frozenset[int] = frozenset()
    ps: dict[int, PsSample] = field(default_factory=dict)
    after_absence: bool = False


class History:
    """status and job are None until the coordinator has answered once.

    waiting: index of each worker that does not step now -> why.
    revision: grows with every answer and failure.  generation: grows with every new job; the samples are of one job.
    gone_since_s: since when the coordinator does not answer; None while it does.
    gone_reason: why, by the last try.
    """

    def __init__(self, samples: int = SAMPLES, events: int = EVENTS) -> None:
        self.status: JobStatus | None = None
        self.job: JobConfig | None = None
        self.at_s = 0.0  # of the status
        self.revision = 0
        self.generation = 0
        self.gone_since_s: float | None = None
        self.gone_reason = ""
        self.samples: deque[Sample] = deque(maxlen=samples)
        self.events: deque[JobEvent] = deque(maxlen=events)  # the latest last
        self.waiting: dict[int, str] = {}
        self.rates = WorkerRates()
        self._lost: dict[tuple[Role, int], tuple[float, Departure]] = {}  # since when, of indices without a process now
        self._staleness = _StalenessTotals()
        self._prepared_s = -math.inf  # since when the variables may be used

    def observe(self, status: JobStatus, job: JobConfig, at_s: float) -> None:
        """Adds an answer of the coordinator."""
        was_gone = self.gone_since_s is not None
        if self.gone_since_s is not None and self.status is not None:
            self._note(at_s, "coordinator", "answers again", f"after {at_s - self.gone_since_s:.0f} s")
        self.gone_since_s, self.gone_reason = None, ""
        if self.job is not None and self.job.job_id != job.job_id:
            self._note(at_s, "job", f"{self.job.job_id} -> {job.job_id}", "another job has this coordinator")
            self.status = None
            self.samples.clear()
            self._staleness = _StalenessTotals()
            self._lost.clear()
            self.generation += 1
        self.events.extend(events_between(self.status, status, job, at_s))
        self._observe_lost(status, at_s)
        self.rates.observe(status, at_s)
        self._staleness.observe(status)
        mode, bound = mode_of(status, job), bound_of(status, job)
        reasons = {worker.index: why_waits(worker, mode, bound) for worker in _of(status, Role.WORKER)}
        self.waiting = {index: why for index, why in reasons.items() if why}
        if status.phase.prepared and self.status is not None and not self.status.phase.prepared:
            self._prepared_s = at_s
        self.samples.append(self._sample(status, job, at_s, was_gone))
        self.status, self.job, self.at_s = status, job, at_s
        self.revision += 1

    def observe_failure(self, reason: str, at_s: float) -> None:
        """Notes that the coordinator has not answered."""
        if self.gone_since_s is None:
            self.gone_since_s = at_s
            self._note(at_s, "coordinator", "not reachable", reason)
        self.gone_reason = reason
        self.revision += 1

    @property
    def bound(self) -> int | None:
        """The current bound, in steps; None outside mode bounded."""
        return bound_of(self.status, self.job) if self.status and self.job else None

    @property
    def ps(self) -> list[MemberStatus]:
        return _of(self.status, Role.PS)

    @property
    def workers(self) -> list[MemberStatus]:
        return _of(self.status, Role.WORKER)

    @property
    def lost(self) -> list[Departure]:
        """Members that were lost and whose index has no process now, the latest of each, the latest last."""
        lost = sorted(self._lost.values(), key=lambda each: each[0])
        return [replace(departure, ago_s=self.at_s - since_s) for since_s, departure in lost]

    def staleness(self, window_s: float = math.inf) -> tuple[int, ...]:
        """Updates by staleness; [len(STALENESS_LIMITS) + 1].  In a finite window only those since the first status."""
        if not self.samples:
            return _NONE
        now = self.samples[-1]
        if window_s == math.inf:
            return now.staleness
        base = self.samples[0]
        for sample in self.samples:
            if sample.at_s > now.at_s - window_s:
                break
            base = sample
        return tuple(a - b for a, b in zip(now.staleness, base.staleness, strict=True))

    def late_share(self, window_s: float = WINDOW_S) -> dict[int, float]:
        """Worker -> the share of samples in the last `window_s` seconds at which others waited for it, 0 to 1."""
        if not self.samples:
            return {}
        recent = [s for s in self.samples if s.at_s > self.samples[-1].at_s - window_s]
        return {w.index: sum(w.index in s.late for s in recent) / len(recent) for w in self.workers}

    def _observe_lost(self, status: JobStatus, at_s: float) -> None:
        """Updates the lost members.  A status has the latest departures alone; earlier ones stay lost."""
        for each in status.departures:
            if each.kind is None:
                self._lost[each.role, each.index] = at_s - each.ago_s, each
            else:
                self._lost.pop((each.role, each.index), None)
        for gone in gone_without_departure(self.status, status) if self.status else ():
            departure = Departure(gone.role, gone.index, gone.incarnation, None, IN_THE_LOG, 0.0)
            self._lost[gone.role, gone.index] = at_s, departure
        for member in status.members:
            self._lost.pop((member.role, member.index), None)

    def _note(self, at_s: float, kind: str, subject: str, reason: str) -> None:
        self.events.append(JobEvent(at_s, kind, subject, reason))

    def _sample(self, status: JobStatus, job: JobConfig, at_s: float, after_absence: bool = False) -> Sample:
        workers = _of(status, Role.WORKER)
        stats = [worker.worker_stats for worker in workers if worker.worker_stats]
        losses = [each.loss for each in stats if each.loss is not None and math.isfinite(each.loss)]
        bound = bound_of(status, job)
        return Sample(
            at_s=at_s,
            global_step=status.global_step,
            steps_per_s=self._steps_per_s(status.global_step, at_s),
            examples_per_s=sum(each.examples_per_s for each in stats),
            loss=sum(losses) / len(losses) if losses else NAN,
            loss_least=min(losses, default=NAN),
            loss_most=max(losses, default=NAN),
            floor=status.floor,
            lead_most=max((worker.lead for worker in workers), default=0),
            bound=NAN if bound is None else bound,
            workers=len(workers),
            waiting=len(self.waiting),
            staleness=self._staleness.totals,
            late=late_of(workers, self.waiting),
            ps={ps.index: _ps_sample(ps) for ps in _of(status, Role.PS)},
            after_absence=after_absence,
        )

    def _steps_per_s(self, global_step: int, at_s: float) -> float:
        """Global steps per second since the variables may be used, over RATE_S at most; 0 right after a rollback."""
        earlier = [s for s in self.samples if s.at_s >= max(at_s - RATE_S, self._prepared_s)]
        if not earlier or earlier[0].at_s >= at_s:
            return 0.0
        return max(0.0, (global_step - earlier[0].global_step) / (at_s - earlier[0].at_s))


def why_waits(worker: MemberStatus, mode: str, bound: int | None) -> str:
    """Why a worker does not step now; empty if it does.  bound: in steps, of mode bounded.

    A worker that waits for long reports it in its heartbeats; its clock shows it at once.
    """
    if worker.worker_stats and worker.worker_stats.waiting:
        return worker.worker_stats.waiting
    if worker.stopped:
        return "the others to stop"
    if mode == SYNC and worker.lead:
        return "the others to contribute to the round"
    if bound is not None and worker.lead > bound:
        return f"{worker.lead} steps ahead of the slowest, bound {bound}"
    return ""


def late_of(workers: Collection[MemberStatus], waiting: Collection[int]) -> frozenset[int]:
    """Indices of the slowest workers that step while others wait; in a round these are all that still compute.

    waiting: indices of the others.
    """
    if not waiting:
        return frozenset()
    least = min((worker.lead for worker in workers), default=0)
    return frozenset(worker.index for worker in workers if worker.index not in waiting and worker.lead == least)


def _of(status: JobStatus | None, role: Role) -> list[MemberStatus]:
    return [member for member in status.members if member.role is role] if status else []


def _ps_sample(ps: MemberStatus) -> PsSample:
    bytes_held = ps.ps_stats.bytes_held if ps.ps_stats else 0
    moved = ps.ps_traffic
    return PsSample(moved.received_per_s, moved.sent_per_s, bytes_held) if moved else PsSample(bytes_held=bytes_held)


_NONE = (0,) * (len(STALENESS_LIMITS) + 1)


class _StalenessTotals:
    """Adds up the workers' counts, each since its process started, over all processes of the job.

    A process that joins again has another incarnation, and continues to count; the address of its health service, at a
    port that the system chose, identifies it.
    """

    def __init__(self) -> None:
        self.totals: tuple[int, ...] = _NONE
        self._of: dict[int, tuple[MemberStatus, tuple[int, ...]]] = {}  # worker index -> its latest member, its counts

    def observe(self, status: JobStatus) -> None:
        totals = list(self.totals)
        for member in _of(status, Role.WORKER):
            counts = member.worker_stats.staleness_counts if member.worker_stats else ()
            if len(counts) == len(totals):
                then = self._of.get(member.index)
                before = then[1] if then and _is_same(then[0], then[1], member, counts) else _NONE
                totals = [total + now - then for total, now, then in zip(totals, counts, before, strict=True)]
                self._of[member.index] = member, counts
        self.totals = tuple(totals)


def _is_same(then: MemberStatus, before: tuple[int, ...], now: MemberStatus, counts: tuple[int, ...]) -> bool:
    """Whether it is the process that was seen then."""
    if then.incarnation == now.incarnation:
        return True
    fell = any(count < earlier for count, earlier in zip(counts, before, strict=True))
    return (then.address, then.health_address) == (now.address, now.health_address) and not fell
