"""The end of a job: the processes that were asked to stop, and how long the drain has waited for the same thing.

A worker that was asked to stop leaves after its step, and a ps when the chief has saved its variables.  When ps 0 was
asked, which has the coordinator, or every worker, the job stops: it drains, the chief writes the last checkpoint, and
the job is STOPPED.  Which waits a drain has, and whom they are for, is decided in lifecycle.py.

Law: a job that was asked to stop is over after `grace_s`, saved or not.  One that fails has so long until its workers
have stopped; its save has as long as that of a job that is done, since nothing outside waits for the end.
Law: a process that was cut off stays barred from being chief until this drain is over.  So each new chief is another
process, and a drain ends: with a chief that closes the job, or with none left.
"""

from __future__ import annotations

import math

from psruntime.core.members.membership import JudgedClock, Member, Role, Since
from psruntime.core.rounds.rounds import NAMED

TOGETHER_S = 1.0  # within which the processes of a job are asked, when all of them are
Wait = tuple[int, object]  # view number, and what is waited for in that view; a different value is a different wait
A_WORKER = "a worker"
TO_STOP = "to stop"


class StopRequests:
    """Times are judged time, in seconds.

    reason: why the job stops; empty while it does not.  cuts_short: whether it would have trained on.
    fails: whether that is a failure, so that the job ends as FAILED.
    """

    def __init__(self, grace_s: float, clock: JudgedClock) -> None:
        self.reason = ""
        self.cuts_short = False
        self.fails = False
        self._grace_s = grace_s
        self._clock = clock
        self._began_s = clock.now_s
        self._workers: set[int] = set()  # incarnations
        self._ps: dict[int, tuple[float, int]] = {}  # incarnation -> when it was asked, and the global step then

    def take(self, member: Member, global_step: int) -> bool:
        """This member was asked to stop; returns whether that is new.  Without any time nothing comes of it."""
        if not self._grace_s or self.has_asked(member):
            return False
        if member.role is Role.PS:
            self._ps[member.incarnation] = (self._clock.now_s, global_step)
        else:
            self._workers.add(member.incarnation)
        return True

    def forget(self, incarnation: int) -> None:
        """The member is gone."""
        self._workers.discard(incarnation)
        self._ps.pop(incarnation, None)

    def begin(self, reason: str, fails: bool = False) -> None:
        """The job stops."""
        self.reason, self._began_s, self.fails = reason, self._clock.now_s, fails

    def has_asked(self, member: Member) -> bool:
        return member.incarnation in self._workers or member.incarnation in self._ps

    @property
    def workers(self) -> int:
        """How many workers were asked."""
        return len(self._workers)

    @property
    def is_late(self) -> bool:
        """Whether the job stops, and has had its time to save."""
        return bool(self.reason) and self._clock.now_s - self._began_s >= self._grace_s

    def wants_save(self, saved_step: int | None, global_step: int) -> bool:
        """Whether a ps that was asked waits for a checkpoint of its variables."""
        return any(not _covers(saved_step, asked_at, global_step) for _, asked_at in self._ps.values())

    def lets_go(self, ps: Member, saved_step: int | None, global_step: int, can_save: bool) -> bool:
        """Whether a ps that was asked may leave: no worker is going to save, or one has.

        It stays for a moment in any case: if all processes are asked, ps 0 will be too.
        """
        since_s, asked_at = self._ps.get(ps.incarnation, (self._clock.now_s, global_step))
        if self._clock.now_s - since_s < TOGETHER_S:
            return False
        return not can_save or _covers(saved_step, asked_at, global_step)


def _covers(saved_step: int | None, asked_at: int, global_step: int) -> bool:
    """Whether a checkpoint was begun after a ps was asked at global step `asked_at`, or nothing was trained since."""
    return saved_step is not None and (saved_step > asked_at or saved_step >= global_step)


class DrainTimer:
    """Times the current wait, which may take `limit_s`, in seconds of judged time.

    wait: without a value while the job does not drain.
    """

    def __init__(self, limit_s: float, clock: JudgedClock) -> None:
        self._limit_s = limit_s
        self._to_stop_s = math.inf  # less once there is little time
        self.wait: Since[Wait] = Since(clock)
        self._cut_off: dict[tuple[int, str], str] = {}  # (worker index, address) -> why

    def update(self, wait: Wait | None) -> None:
        """Starts anew if this is another wait than before; None: the job does not drain."""
        self.wait.update(wait)
        if wait is None:
            self._cut_off = {}

    def hurry(self, to_stop_s: float) -> None:
        """The job has little time: from now on workers get so much of it to stop, the chief the rest to close."""
        self._to_stop_s = to_stop_s
        self.wait.begin(self.wait.what)

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
        return self.wait.what is not None and self.wait.what[1] == what

    @property
    def is_late(self) -> bool:
        """Whether the current wait has reached the limit."""
        return self.wait.what is not None and self.wait.for_s >= self.limit_s

    @property
    def why_hopeless(self) -> str:
        """Why a job that is late and has no chief can only fail."""
        why = [f"none joined within {self.limit}"] if self._waits_for(A_WORKER) else []
        return f"no worker is left to write the last checkpoint: {', '.join([*why, *self._cut_off.values()][:NAMED])}"
