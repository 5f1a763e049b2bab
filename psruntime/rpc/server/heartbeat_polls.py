"""Long polls of heartbeats: each waits until its member's instructions change.

Belongs to one event loop and is used in its thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer

PAUSE_S = 0.001  # for each poll, between two checks of all; half of it goes to its answer and the next heartbeat

AnswerOf = Callable[[Role, int, int], Answer]


@dataclass(frozen=True, eq=False)
class _Poll:
    role: Role
    index: int
    incarnation: int
    seen_revision: int
    news: asyncio.Future[Answer]


class HeartbeatPolls:
    """The heartbeats that wait.  `answer_of` answers for a member, or raises what its heartbeat shall raise."""

    def __init__(self, answer_of: AnswerOf) -> None:
        self._answer_of = answer_of
        self._polls: set[_Poll] = set()
        self._waking: asyncio.Handle | None = None
        self._pauses_until_s = 0.0  # of the loop's clock
        self._closed = False

    async def news(self, role: Role, index: int, incarnation: int, seen_revision: int, max_wait_s: float) -> Answer:
        """The member's answer, as soon as its revision is not `seen_revision`, at the latest after `max_wait_s`."""
        answer = self._answer_of(role, index, incarnation)
        if answer.revision != seen_revision or max_wait_s <= 0 or self._closed:
            return answer
        poll = _Poll(role, index, incarnation, seen_revision, asyncio.get_running_loop().create_future())
        self._polls.add(poll)
        try:
            await asyncio.wait({poll.news}, timeout=max_wait_s)
        finally:
            self._polls.discard(poll)
        return poll.news.result() if poll.news.done() else self._answer_of(role, index, incarnation)

    def has(self, incarnation: int) -> bool:
        """Whether this member has a poll here, so an open connection."""
        return any(poll.incarnation == incarnation for poll in self._polls)

    def wake_soon(self) -> None:
        """Checks all polls for news once the inputs that are at hand are taken, so many changes cost one check.

        A single change is answered at once.  In a stream of changes, as while a thousand members join, each of which
        may be news for all, there is a pause between two checks for other calls.
        """
        if self._waking is None:
            loop = asyncio.get_running_loop()
            pauses = loop.time() < self._pauses_until_s
            self._waking = loop.call_at(self._pauses_until_s, self.wake) if pauses else loop.call_soon(self.wake)

    def wake(self) -> None:
        """Answers the polls for which there is news."""
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        self._pauses_until_s = asyncio.get_running_loop().time() + PAUSE_S * len(self._polls)
        self._wake(list(self._polls))

    def wake_workers(self, indices: Collection[int]) -> None:
        """Answers at once the polls of these workers for which there is news."""
        self._wake([poll for poll in self._polls if poll.role is Role.WORKER and poll.index in indices])

    def close(self) -> None:
        """Answers all polls as things stand; later ones return at once."""
        self._closed = True
        self.wake()

    def _wake(self, polls: Iterable[_Poll]) -> None:
        for poll in (poll for poll in polls if not poll.news.done()):
            try:
                answer = self._answer_of(poll.role, poll.index, poll.incarnation)
            except Exception as error:  # noqa: BLE001 - its own handler translates it, the other polls go on
                poll.news.set_exception(error)
            else:
                if answer.revision != poll.seen_revision or self._closed:
                    poll.news.set_result(answer)
