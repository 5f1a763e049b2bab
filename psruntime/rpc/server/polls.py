"""Calls that wait for an answer: heartbeats, clocks, changes; and those who watch the job.

A poll of changes asks again when something has changed.  One of a clock report waits until the floor is where its
worker needs it.  One of a heartbeat waits until its member's instructions change; while the status is read it is
shorter, so that members report every second.  A watcher, which reads the status again and again, receives the end of
the job.

All belong to one event loop and are used in its thread only.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypeVar

from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer
from psruntime.core.members.view import Phase

T = TypeVar("T")


class ChangePolls:
    """All of them ask again when what `update` is given is another than before: turns, as a rule once a round."""

    def __init__(self) -> None:
        self._changed: asyncio.Future[None] | None = None  # for which all wait
        self._revision: object = 0
        self._closed = False

    async def news(self, ask: Callable[[], T], is_news: Callable[[T], bool], max_wait_s: float) -> T:
        """The answer, as soon as it is worth one, at the latest after `max_wait_s`."""
        until_s = time.monotonic() + max_wait_s
        while True:
            self._changed = changed = self._changed or asyncio.get_running_loop().create_future()
            answer = ask()
            left_s = until_s - time.monotonic()
            if is_news(answer) or left_s <= 0 or self._closed:
                return answer
            await asyncio.wait({changed}, timeout=left_s)

    def update(self, revision: object) -> None:
        """Wakes all polls if the revision has changed."""
        if revision != self._revision:
            self._revision = revision
            self._wake()

    def close(self) -> None:
        """Answers all polls as things stand; later ones return at once."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed:
            changed.set_result(None)


Era = tuple[int, Phase]  # number of the view, and what the job does


class ClockPolls:
    """The polls by the floor that they want, so that a rise of the floor only touches those that it reaches."""

    def __init__(self) -> None:
        self._waiting: dict[int, dict[asyncio.Future[None], None]] = {}  # wanted floor -> its polls, as they came
        self._floor = 0
        self._era: Era | None = None
        self._closed = False

    def __len__(self) -> int:
        return sum(len(polls) for polls in self._waiting.values())

    async def reached(self, wanted_floor: int, max_wait_s: float) -> None:
        """Waits for the floor, for another view or phase, or for `max_wait_s`.  The caller asks again then."""
        if self._closed or max_wait_s <= 0:
            return
        released = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(wanted_floor, {})[released] = None
        try:
            await asyncio.wait({released}, timeout=max_wait_s)
        finally:
            self._discard(wanted_floor, released)

    def update(self, floor: int, era: Era) -> None:
        """Takes where things stand, after every input of the coordinator."""
        if era != self._era:
            self._era, self._floor = era, floor
            self._release(list(self._waiting))
        elif floor != self._floor:
            self._floor = floor
            self._release([wanted for wanted in self._waiting if wanted <= floor])

    def close(self) -> None:
        """Ends all polls; later ones return at once."""
        self._closed = True
        self._release(list(self._waiting))

    def _release(self, floors: list[int]) -> None:
        for wanted in floors:
            for released in self._waiting.pop(wanted):
                if not released.done():
                    released.set_result(None)

    def _discard(self, wanted_floor: int, released: asyncio.Future[None]) -> None:
        polls = self._waiting.get(wanted_floor, {})
        polls.pop(released, None)
        if not polls:
            self._waiting.pop(wanted_floor, None)


PAUSE_S = 0.001  # for each poll, between two checks of all; half of it goes to its answer and the next heartbeat
MOST_S = 1.0  # of that gap
AT_ONCE = 32  # polls that are checked before other calls get their turn: some 1 ms

FRESH_S = 1.0  # while the status is read, the largest age of a member's last heartbeat
WATCHED_S = 3.0  # for which a question for the status counts; who watches asks every second
BEATS_PER_S = 300  # of all members together, while the status is read; a quarter of what one core answers at most

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
        self._polls: dict[_Poll, None] = {}  # as they came
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
        self._polls[poll] = None
        if loop.time() < self._watched_until_s:
            max_wait_s = min(max_wait_s, self._watched_wait_s)
        try:
            await asyncio.wait({poll.news}, timeout=max_wait_s)
        finally:
            self._polls.pop(poll, None)
        return poll.news.result() if poll.news.done() else self._answer_of(role, index, incarnation)

    def has(self, incarnation: int) -> bool:
        """Whether this member has a poll here, so an open connection."""
        return any(poll.incarnation == incarnation for poll in self._polls)

    def wake_soon(self) -> None:
        """Checks all polls for news once the inputs that are at hand are taken, so many changes cost one check.

        A single change is answered at once.  In a stream of changes, as while a thousand members join, each of which
        may be news for all, there is a gap between two checks for other calls.
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
        """The status was read: for a while polls last a second at most, also those that have begun before.

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
            except Exception as error:  # noqa: BLE001 - its own handler translates it, the other polls continue
                poll.news.set_exception(error)
            else:
                if answer.revision != poll.seen_revision or self._closed or anyhow:
                    poll.news.set_result(answer)


AGAIN_S = 2.5  # a watcher that has not asked again by then is gone; one asks every second
SOON_S = 1.2  # the same, where the process was asked to stop
MOST = 1000  # that are remembered


class Watchers:
    """By the address of the connection.  Times in seconds, of one clock."""

    def __init__(self) -> None:
        self._asked_s: OrderedDict[str, float] = OrderedDict()  # who asked while the job was not over; the latest last

    def ask(self, peer: str, is_over: bool, now_s: float) -> None:
        """A watcher asks; the answer has whether the job is over."""
        self._asked_s.pop(peer, None)
        if not is_over:
            self._asked_s[peer] = now_s
        if len(self._asked_s) > MOST:
            self._asked_s.popitem(last=False)

    def are_to_hear(self, now_s: float, within_s: float = AGAIN_S) -> bool:
        """Whether a watcher that asked within that time has not received the end of the job."""
        latest_s = next(reversed(self._asked_s.values()), None)
        return latest_s is not None and now_s - latest_s < within_s
