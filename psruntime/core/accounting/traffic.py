"""What each member moves: rates between two of its reports, and whether one ps carries more than its share.

Members tell sums that only grow.  Marks are set for all of them at once, a window apart: a rate is over the time since
the mark before the last one, so over one to two windows, and the ps are compared over the same time.

Law: a ps is heavy after two windows one after the other in each of which it moved more than HEAVY times the mean of
all ps, until one in which it moved less than RELIEVED times that.  Only windows count that were wholly in phase
TRAINING, and in which all ps together moved LEAST_BYTES_PER_S.  Where ps may be without buckets on purpose, those
have no share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from psruntime.core.members.job_status import PsTraffic, WorkerTraffic
from psruntime.core.members.membership import Member, Role
from psruntime.core.members.messages import BytesMoved, PsStats, WorkerStats

WINDOW_S = 10.0  # shorter ones would be of few heartbeats, which come three times a lease
HEAVY = 1.5  # times its share
RELIEVED = 1.25  # well below, so that a ps at the limit is logged once
LEAST_BYTES_PER_S = 1_000_000  # no network is busy with less, however it is spread
LEAST_STEPS = 20  # a heartbeat tells of a step that is under way, or not: of fewer steps that would be too much


@dataclass(frozen=True)
class _Reported:
    """A member's report, and its time."""

    at_s: float
    moved: BytesMoved
    steps: int  # of a worker


@dataclass
class _Line:
    """What is kept of a member.  mark: at the last mark; before: at the one before it, or when it came.

    has_share: of a ps, whether the traffic is spread over it, too.
    """

    member: Member
    before: _Reported
    mark: _Reported | None
    latest: _Reported
    has_share: bool = True


class TrafficRates:
    """Of all live members that know what they move.  `note(name, **facts)` tells what an operator wants to read.

    some_empty: whether some ps may be without buckets on purpose.
    """

    def __init__(self, num_ps: int, lease_s: float, note: Callable[..., None], some_empty: bool = False) -> None:
        self._num_ps = num_ps
        self._some_empty = some_empty
        self._window_s = max(WINDOW_S, lease_s)
        self._note = note
        self._lines: dict[int, _Line] = {}  # by incarnation
        self._marked_s = 0.0
        self._trained = False  # whether all since the last mark was training
        self._suspects: set[int] = set()  # ps that were above HEAVY in the last window
        self._heavy: set[int] = set()  # index of ps

    def update(self, member: Member, stats: PsStats | WorkerStats, trains: bool, now_s: float) -> None:
        """Adds a member's report; `trains`: the phase is TRAINING."""
        if now_s - self._marked_s >= self._window_s:
            self._set_marks(now_s)
        self._trained &= trains
        if stats.moved is None:
            return
        reported = _Reported(now_s, stats.moved, stats.pushes if isinstance(stats, WorkerStats) else 0)
        line = self._lines.setdefault(member.incarnation, _Line(member, reported, None, reported))
        line.latest = reported
        if self._some_empty and isinstance(stats, PsStats):
            line.has_share = stats.buckets > 0

    def forget(self, incarnation: int) -> None:
        """The member is gone."""
        self._lines.pop(incarnation, None)

    def of_ps(self) -> dict[int, PsTraffic]:
        """By incarnation, of the ps that reported it twice."""
        spans = {inc: _Span(line.before, line.latest) for inc, line in self._lines.items() if _is_ps(line)}
        spans = {inc: span for inc, span in spans.items() if span.seconds > 0}
        total = sum(span.bytes_per_s for span in spans.values())
        return {
            inc: PsTraffic(
                sent_per_s=span.sent / span.seconds,
                received_per_s=span.received / span.seconds,
                share=span.bytes_per_s / total if total and len(spans) == self._num_ps else None,
                heavy=self._lines[inc].member.index in self._heavy,
            )
            for inc, span in spans.items()
        }

    def of_worker(self, incarnation: int) -> WorkerTraffic | None:
        """None before it has reported two different numbers of steps."""
        line = self._lines.get(incarnation)
        span = _Span(line.before, line.latest) if line else None
        return WorkerTraffic(span.sent / span.steps, span.received / span.steps) if span and span.steps else None

    def _set_marks(self, now_s: float) -> None:
        self._judge()
        self._marked_s, self._trained = now_s, True
        for line in self._lines.values():
            if line.mark is None:
                line.mark = line.latest
            elif _is_ps(line) or line.latest.steps - line.mark.steps >= LEAST_STEPS:
                line.before, line.mark = line.mark, line.latest

    def _judge(self) -> None:
        """Looks at the window that ends."""
        spans = {n.member.index: _Span(n.mark, n.latest) for n in self._lines.values() if _is_ps(n) and n.mark}
        rates = {index: span.bytes_per_s for index, span in spans.items() if span.seconds > 0}
        total = sum(rates.values())
        if not (self._trained and len(rates) == self._num_ps and total >= LEAST_BYTES_PER_S):
            self._suspects = set()
            return
        sharing = {line.member.index for line in self._lines.values() if _is_ps(line) and line.has_share}
        times = {index: rates[index] * len(sharing) / total for index in sharing}
        for index in [index for index in sorted(self._heavy) if times.get(index, 0.0) < RELIEVED]:
            self._heavy.discard(index)
            self._note("ps_relieved", ps=index, share=f"{rates[index] / total:.0%}")
        above = {index for index, n in times.items() if n > HEAVY}
        for index in sorted((above & self._suspects) - self._heavy):
            self._heavy.add(index)
            share, reason = f"{rates[index] / total:.0%}", why_heavy(index, times[index], len(sharing))
            self._note("ps_heavy", ps=index, share=share, bytes_per_s=round(rates[index]), reason=reason)
        self._suspects = above


def why_heavy(index: int, times: float, num_ps: int) -> str:
    """What an operator reads of a ps that carries `times` its share."""
    return (
        f"ps {index} carries {times:.1f} times its share of the traffic of {num_ps} ps; "
        "python -m psruntime plan shows what it holds: a table that is looked up often can be made in parts "
        "(partitioner=), a large variable be cut (--slice-bytes)"
    )


class _Span:
    """What was reported between two times."""

    def __init__(self, first: _Reported, last: _Reported) -> None:
        self.seconds = last.at_s - first.at_s
        self.sent = max(0, last.moved.sent - first.moved.sent)
        self.received = max(0, last.moved.received - first.moved.received)
        self.steps = max(0, last.steps - first.steps)

    @property
    def bytes_per_s(self) -> float:
        return (self.sent + self.received) / self.seconds


def _is_ps(line: _Line) -> bool:
    return line.member.role is Role.PS
