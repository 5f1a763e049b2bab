"""How long the end of a job has waited for the same thing, and who was cut off because it took too long.

Each wait may take `limit_s`.  Which waits there are, and whom they are for, is decided in lifecycle.py.

Law: a process that was cut off stays barred from being chief until this drain is over.  So each new chief is another
process, and a drain ends: with a chief that closes the job, or with none left.
"""

from __future__ import annotations

import math

from psruntime.core.members.judged_clock import JudgedClock, Since
from psruntime.core.members.membership import Member
from psruntime.core.rounds.rounds import NAMED

Wait = tuple[int, object]  # view number, and what is waited for in that view; a different value is a different wait
A_WORKER = "a worker"
TO_STOP = "to stop"


class DrainTimer:
    """Times the current wait, in seconds of judged time."""

    def __init__(self, limit_s: float, clock: JudgedClock) -> None:
        self._limit_s = limit_s
        self._to_stop_s = math.inf  # less once there is little time
        self._wait: Since[Wait] = Since(clock)  # without a value while the job does not drain
        self._cut_off: dict[tuple[int, str], str] = {}  # (worker index, address) -> why

    def update(self, wait: Wait | None) -> None:
        """Starts anew if this is another wait than before; None: the job does not drain."""
        self._wait.update(wait)
        if wait is None:
            self._cut_off = {}

    def hurry(self, to_stop_s: float) -> None:
        """The job has little time: from now on workers get so much of it to stop, the chief the rest to close."""
        self._to_stop_s = to_stop_s
        self._wait.begin(self._wait.what)

    def cut_off(self, worker: Member, reason: str) -> None:
        """Records that a worker took too long."""
        self._cut_off[worker.index, worker.address] = f"{worker.name} {reason}"

    def bars(self, worker: Member) -> bool:
        """Whether this process was cut off in this drain."""
        return (worker.index, worker.address) in self._cut_off

    @property
    def limit_s(self) -> float:
        """How long the current wait may take."""
        return self._to_stop_s if self._is_hurried else self._limit_s

    @property
    def limit(self) -> str:
        """The same for people, with the setting that it comes from."""
        return f"{self.limit_s:g} s ({'half of stop_grace_s' if self._is_hurried else 'drain_timeout_s'})"

    @property
    def _is_hurried(self) -> bool:
        return self._waits_for(TO_STOP) and self._to_stop_s < self._limit_s

    def _waits_for(self, what: object) -> bool:
        return self._wait.what is not None and self._wait.what[1] == what

    @property
    def is_late(self) -> bool:
        """Whether the current wait has reached the limit."""
        return self._wait.what is not None and self.waited_s >= self.limit_s

    @property
    def waited_s(self) -> float:
        """How long the current wait has taken."""
        return self._wait.for_s

    @property
    def why_hopeless(self) -> str:
        """Why a job that is late and has no chief can only fail."""
        nobody = f"nobody came within {self.limit}"
        why = [nobody] if self._waits_for(A_WORKER) else []
        return f"no worker is left to write the last checkpoint: {', '.join([*why, *self._cut_off.values()][:NAMED])}"
