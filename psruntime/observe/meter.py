"""What a process measures of itself: the rates, staleness and phases of a worker's steps, and the bytes it moves."""

from __future__ import annotations

import socket
import struct
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from psruntime.core.members.messages import STALENESS_LIMITS, BytesMoved, WorkerStats
from psruntime.network import connections
from psruntime.network.connections import Connection, Descriptor

BYTES = struct.Struct("=120xQQ")  # of struct tcp_info: tcpi_bytes_acked, tcpi_bytes_received (since Linux 4.1)


class TrafficMeter:
    """The bytes that the connections of this process have moved, by the kernel's counts: TensorFlow has none.

    Sums over all connections that `counts`, since they were opened.  May be called by any thread.  Connections whose
    other end is in this process, too, carry nothing over a network and are left out.

    Linux counts for each TCP socket the bytes that the other side has acknowledged and those received (linux/tcp.h,
    struct tcp_info); a process may read those of its own (network/connections.py).

    Bytes between the last look at a connection and its close are not in the sums: they are never too large.  Opening
    and closing one counts as a byte.  Bytes that are not acknowledged, or sent again, do not count as sent.
    """

    def __init__(self, counts: Callable[[Connection], bool]) -> None:
        self._counts = counts
        self._lock = threading.Lock()
        self._known: dict[int, Connection] = {}  # by inode, of sockets that were there at the last look
        self._last: dict[int, BytesMoved] = {}  # the same, of those that count
        self._sent = self._received = 0
        self._is_counted = False  # some sandboxes have the fields, and leave them empty

    def moved(self) -> BytesMoved | None:
        """The bytes that they have moved until now; None where the kernel has no counts, or nothing has moved yet."""
        with self._lock:
            try:
                found = self._look()
            except (OSError, AttributeError, struct.error):  # no Linux, no /proc, or too old
                return None
            if not self._is_counted:
                return None
            for inode, now in found.items():
                last = self._last.get(inode, BytesMoved())
                self._sent += now.sent - last.sent
                self._received += now.received - last.received
                self._last[inode] = now
            return BytesMoved(self._sent, self._received)

    def _look(self) -> dict[int, BytesMoved]:
        """The bytes of each connection that counts, by inode."""
        known: dict[int, Connection] = {}
        moved: dict[int, BytesMoved] = {}
        sockets = connections.descriptors()
        for at in sockets:
            if at.inode in known:
                continue  # a second descriptor of it
            read = _read(at, self._known.get(at.inode))
            if read is not None:
                known[at.inode], moved[at.inode] = read
        here = {at.inode for at in sockets}
        self._known, self._last = known, {inode: last for inode, last in self._last.items() if inode in here}
        self._is_counted |= any(each.received for each in moved.values())
        ends = set(known.values())
        within = {each for each in ends if Connection(each.remote, each.local) in ends}
        return {inode: m for inode, m in moved.items() if known[inode] not in within and self._counts(known[inode])}


def _read(at: Descriptor, known: Connection | None) -> tuple[Connection, BytesMoved] | None:
    """The connection of this socket, and its bytes; None if it is no TCP connection, or is not there any more.

    Raises:
        AttributeError, struct.error: the system does not count bytes.
    """
    with connections.borrowed(at.number) as tcp:
        if tcp is None:
            return None
        try:
            connection = known or connections.connection_of(tcp)
            info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES.size)
            return (connection, BytesMoved(*BYTES.unpack(info))) if at.is_current() else None
        except OSError:
            return None  # not connected, or closed meanwhile


STALENESS_WINDOW = 1000  # pushes; percentiles of fewer are noisy
RATE_WINDOW_S = 5.0  # long enough to smooth single steps, short enough to show a change
GATE = "gate"  # modes async and bounded: until the step may begin
ROUND = "round"  # mode sync: until the worker may contribute
INPUT = "input"  # until there is a batch
PULL = "pull"  # until the variables that the model reads whole, and the rows of its table groups, are on the worker
COMPUTE = "compute"  # until loss and gradients are there
PUSH = "push"  # until every ps has answered it
PHASES = (GATE, ROUND, INPUT, PULL, COMPUTE, PUSH)


class StepMeter:
    """Collects steps; `stats` may be called by any thread.  Times are monotonic seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._staleness: deque[int] = deque(maxlen=STALENESS_WINDOW)
        self._staleness_counts = [0] * (len(STALENESS_LIMITS) + 1)
        self._recent: deque[tuple[float, int]] = deque()  # (when, examples)
        self._dropped = 0
        self._skipped = 0
        self._loss: float | None = None

    def step(self, loss: float, examples: int, staleness: int | None, dropped: int, now_s: float) -> None:
        """Adds a step.  `staleness` in versions, None if its update was applied nowhere; `dropped` in buckets."""
        with self._lock:
            self._dropped += dropped
            self._loss = loss
            if staleness is not None:
                self._staleness.append(staleness)
                self._staleness_counts[bisect_left(STALENESS_LIMITS, staleness)] += 1
            self._recent.append((now_s, examples))
            self._forget(now_s)

    def skip(self) -> None:
        """Counts a batch that was skipped."""
        with self._lock:
            self._skipped += 1

    @property
    def dropped(self) -> int:
        """Bucket updates of this worker that a ps refused."""
        return self._dropped

    def stats(self, now_s: float, waiting: str = "") -> WorkerStats:
        """The figures of now.  waiting: why no step runs; empty if one does."""
        with self._lock:
            self._forget(now_s)
            staleness = sorted(self._staleness)
            return WorkerStats(
                staleness_p50=_percentile(staleness, 0.50),
                staleness_p99=_percentile(staleness, 0.99),
                examples_per_s=self._rate(now_s),
                loss=self._loss,
                waiting=waiting,
                skipped=self._skipped,
                staleness_counts=tuple(self._staleness_counts),
            )

    def _rate(self, now_s: float) -> float:
        if len(self._recent) < 2:
            return 0.0
        span_s = now_s - self._recent[0][0]
        return sum(examples for _, examples in self._recent) / span_s if span_s > 0 else 0.0

    def _forget(self, now_s: float) -> None:
        while self._recent and self._recent[0][0] < now_s - RATE_WINDOW_S:
            self._recent.popleft()


def _percentile(ordered: list[int], share: float) -> int:
    """Nearest-rank percentile of an ascending list; 0 for an empty one."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0


@dataclass(frozen=True)
class StepTimes:
    """The marks of one step, in seconds since 1970 by the clock of its worker; none is before the one above it.

    wait: GATE or ROUND, the phase that starts at `waits`.  draws: start of drawing a batch.  runs: start of the graph.
    pulled, computed: within that run.  done: end of the run.
    """

    wait: str
    waits: float
    draws: float
    runs: float
    pulled: float
    computed: float
    done: float

    @property
    def phases(self) -> list[tuple[str, float, float]]:
        """(phase, its begin, its end), in their order."""
        marks = (self.waits, self.draws, self.runs, self.pulled, self.computed, self.done)
        return list(zip((self.wait, INPUT, PULL, COMPUTE, PUSH), marks, marks[1:], strict=False))


def in_order(wait: str, *marks: float) -> StepTimes:
    """Times from marks of two clocks, or of one that was set: none before the one above it, none after the last."""
    last, least, ordered = marks[-1], marks[0], []
    for mark in marks:
        least = max(least, min(mark, last))
        ordered.append(least)
    return StepTimes(wait, *ordered)
