"""The time of a step, by a trace: each worker's phases, each ps's work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from psruntime.observe.meter import GATE, PHASES, ROUND
from psruntime.observe.traces import APPLY, MUTEX, PHASE, READ, STEP, TRANSFER, Span

PS_KINDS = (READ, APPLY, MUTEX, TRANSFER)
NOTABLE = 0.1  # of a step, the least part of waiting that is reported
MUCH_LESS = 0.5  # of the time that another worker waits


@dataclass(frozen=True)
class WorkerTime:
    """The time of one worker: the number of steps, the mean time of one in s, and of that each phase."""

    worker: int
    steps: int
    step_s: float
    phases: dict[str, float]

    @property
    def waiting(self) -> float:
        """The fraction of a step that it waits for others."""
        return sum(self.phases.get(phase, 0.0) for phase in (GATE, ROUND)) / self.step_s if self.step_s else 0.0


@dataclass(frozen=True)
class PsTime:
    """The time of one ps per step of a worker, in s: of each kind of work, of which several may run at a time."""

    ps: int
    kinds: dict[str, float]


@dataclass(frozen=True)
class Report:
    """waited_for: the worker that waits much less than another, which therefore waits for it; None without one."""

    workers: list[WorkerTime]
    ps: list[PsTime]
    waited_for: WorkerTime | None


def report_of(spans: Iterable[Span]) -> Report:
    """The means over all steps in the trace."""
    of_task = defaultdict(list)
    for span in spans:
        of_task[span.task].append(span)
    workers = sorted(
        (_worker_time(_index(task), found) for task, found in of_task.items() if task.startswith("worker")),
        key=lambda time: time.worker,
    )
    steps = sum(time.steps for time in workers)
    ps = sorted(
        (_ps_time(_index(task), found, steps) for task, found in of_task.items() if task.startswith("ps")),
        key=lambda time: time.ps,
    )
    return Report(workers, ps, _waited_for(workers))


def busy_s(spans: Iterable[Span]) -> float:
    """Seconds in which at least one of them ran."""
    total, until = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.begin_s):
        total += max(0.0, span.end_s - max(until, span.begin_s))
        until = max(until, span.end_s)
    return total


def _worker_time(worker: int, spans: list[Span]) -> WorkerTime:
    steps = [span for span in spans if span.kind == STEP]
    lengths: dict[str, float] = defaultdict(float)
    for span in spans:
        if span.kind == PHASE:
            lengths[span.name] += span.end_s - span.begin_s
    count = max(1, len(steps))
    phases = {phase: lengths[phase] / count for phase in PHASES if phase in lengths}
    return WorkerTime(worker, len(steps), sum(span.end_s - span.begin_s for span in steps) / count, phases)


def _ps_time(ps: int, spans: list[Span], steps: int) -> PsTime:
    """Counts the spans of different workers apart, so that it is the work of one step."""
    of = defaultdict(list)
    for span in spans:
        of[span.kind, span.worker].append(span)
    kinds = {
        kind: sum(busy_s(found) for (of_kind, _), found in of.items() if of_kind == kind) / max(1, steps)
        for kind in PS_KINDS
    }
    return PsTime(ps, kinds)


def _waited_for(workers: list[WorkerTime]) -> WorkerTime | None:
    if len(workers) < 2:
        return None
    least, most = (choose(workers, key=lambda time: time.waiting) for choose in (min, max))
    if most.waiting < NOTABLE or least.waiting > MUCH_LESS * most.waiting:
        return None
    return least


def _index(task: str) -> int:
    return int(task.split()[1])
