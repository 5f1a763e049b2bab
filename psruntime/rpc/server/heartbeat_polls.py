"""Long polls of heartbeats: each waits until its member's instructions change.

Belongs to one event loop and is used in its thread only.

While somebody asks for the status, they wait less long, so that members say every second what they measure.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer

PAUSE_S = 0.001  # for each poll, between two checks of all; half of it goes to its answer and the next heartbeat
MOST_S = 1.0  # of that pause
AT_ONCE = 32  # polls that are checked before other calls get their turn: some 1 ms

FRESH_S = 1.0  # how old at most, while somebody looks, is what a member has said
WATCHED_S = 3.0  # for which a question for the status counts; who watches asks every second
BEATS_PER_S = 300  # of all members together, for whoever looks; a quarter of what one core answers at most

AnswerOf = Callable[[Role, int, int], Answer]


@dataclass(frozen=True, eq=False)
class _Poll:
    role: Role
    index: int
    incarnation: int
    seen_revision: int
    began_s: float  # of the loop's clock
    news: asyncio.Future[Answer]


class HeartbeatPolls:
    """The heartbeats that wait.  `answer_of` answers for a member, or raises what its heartbeat shall raise."""

    def __init__(self, answer_of: AnswerOf, fresh_s: float = FRESH_S) -> None:
        self._answer_of = answer_of
        self._fresh_s = fresh_s
        self._watched_until_s = 0.0  # of the loop's clock
        self._polls: set[_Poll] = set()
        self._unchecked: deque[_Poll] = deque()
        self._checking: asyncio.Handle | None = None  # the next part of a check, or its begin
        self._is_asked = False  # for a check, since one began
        self._pauses_until_s = 0.0  # of the loop's clock
        self._closed = False

    async def news(self, role: Role, index: int, incarnation: int, seen_revision: int, max_wait_s: float) -> Answer:
        """The member's answer, as soon as its revision is not `seen_revision`, at the latest after `max_wait_s`."""
        answer = self._answer_of(role, index, incarnation)
        if answer.revision != seen_revision or max_wait_s <= 0 or self._closed:
            return answer
        loop = asyncio.get_running_loop()
        poll = _Poll(role, index, incarnation, seen_revision, loop.time(), loop.create_future())
        self._polls.add(poll)
        if loop.time() < self._watched_until_s:
            max_wait_s = min(max_wait_s, self._watched_wait_s)
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
        self._is_asked = True
        if self._checking is None:
            loop = asyncio.get_running_loop()
            pauses = loop.time() < self._pauses_until_s
            self._checking = loop.call_at(self._pauses_until_s, self._begin) if pauses else loop.call_soon(self._begin)

    def wake_workers(self, indices: Collection[int]) -> None:
        """Answers at once the polls of these workers for which there is news."""
        self._wake([poll for poll in self._polls if poll.role is Role.WORKER and poll.index in indices])

    def watch(self) -> None:
        """Somebody looks at the job: for a while polls last a second at most, also those that have begun before.

        Of very many members they last longer, so that their heartbeats stay few enough.
        """
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if now_s >= self._watched_until_s:
            longest_s = self._watched_wait_s
            self._wake([poll for poll in self._polls if now_s - poll.began_s > longest_s], anyhow=True)
            for poll in self._polls:
                if not poll.news.done():
                    loop.call_at(poll.began_s + longest_s, self._end, poll)
        self._watched_until_s = now_s + WATCHED_S

    @property
    def _watched_wait_s(self) -> float:
        return max(self._fresh_s, len(self._polls) / BEATS_PER_S)

    def close(self) -> None:
        """Answers all polls as things stand; later ones return at once."""
        self._closed = True
        self._wake(list(self._polls))

    def _end(self, poll: _Poll) -> None:
        if poll in self._polls:  # it may have ended by itself
            self._wake([poll], anyhow=True)

    def _begin(self) -> None:
        self._is_asked = False
        self._pauses_until_s = asyncio.get_running_loop().time() + min(MOST_S, PAUSE_S * len(self._polls))
        self._unchecked.extend(self._polls)
        self._go_on()

    def _go_on(self) -> None:
        """Checks some polls, and leaves the rest for when other calls have had their turn."""
        part = [self._unchecked.popleft() for _ in range(min(AT_ONCE, len(self._unchecked)))]
        self._wake(poll for poll in part if poll in self._polls)  # the others have ended meanwhile
        self._checking = asyncio.get_running_loop().call_soon(self._go_on) if self._unchecked else None
        if self._is_asked and self._checking is None:  # some were checked before what this is about
            self.wake_soon()

    def _wake(self, polls: Iterable[_Poll], anyhow: bool = False) -> None:
        """anyhow: also those for which there is no news."""
        for poll in (poll for poll in polls if not poll.news.done()):
            try:
                answer = self._answer_of(poll.role, poll.index, poll.incarnation)
            except Exception as error:  # noqa: BLE001 - its own handler translates it, the other polls go on
                poll.news.set_exception(error)
            else:
                if answer.revision != poll.seen_revision or self._closed or anyhow:
                    poll.news.set_result(answer)
