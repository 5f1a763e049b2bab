"""Processes that were asked to stop, and whether the job stops with them.

A worker leaves after its step, and a ps when the chief has saved its variables.  When ps 0 was asked, which has the
coordinator, or every worker, the job stops: it drains, the chief writes the last checkpoint, and the job is STOPPED.

Law: a job that was asked to stop is over after `grace_s`, saved or not.  One that fails has so long until its workers
have stopped; its save has as long as that of a job that is done, since nothing outside waits for the end.
"""

from __future__ import annotations

from psruntime.core.members.judged_clock import JudgedClock
from psruntime.core.members.membership import Member, Role

TOGETHER_S = 1.0  # within which the processes of a job are asked, when all of them are


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
        return self._clock.now_s - since_s >= TOGETHER_S and not (
            can_save and not _covers(saved_step, asked_at, global_step)
        )


def _covers(saved_step: int | None, asked_at: int, global_step: int) -> bool:
    """Whether a checkpoint was begun after a ps was asked at global step `asked_at`, or nothing was trained since."""
    return saved_step is not None and (saved_step > asked_at or saved_step >= global_step)
