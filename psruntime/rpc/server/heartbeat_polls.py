"""Heartbeats that are held back until there is news for their member.

Belongs to one event loop and is used in its thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from psruntime.core.members.membership import Role
from psruntime.core.members.messages import Answer

REST_S = 0.001  # for each wait between two looks for news, half of which its answer and the next heartbeat take

Standing = Callable[[Role, int, int], Answer]


@dataclass(frozen=True, eq=False)
class _Held:
    role: Role
    index: int
    incarnation: int
    seen_revision: int
    news: asyncio.Future[Answer]


class HeldHeartbeats:
    """The heartbeats that wait.  `standing` answers for a member, or raises what its heartbeat shall raise."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._held: set[_Held] = set()
        self._waking: asyncio.Handle | None = None
        self._rests_until_s = 0.0  # of the loop's clock
        self._closed = False

    async def news(self, role: Role, index: int, incarnation: int, seen_revision: int, max_wait_s: float) -> Answer:
        """The member's standing, as soon as its revision is not `seen_revision`, at the latest after `max_wait_s`."""
        answer = self._standing(role, index, incarnation)
        if answer.revision != seen_revision or max_wait_s <= 0 or self._closed:
            return answer
        held = _Held(role, index, incarnation, seen_revision, asyncio.get_running_loop().create_future())
        self._held.add(held)
        try:
            await asyncio.wait({held.news}, timeout=max_wait_s)
        finally:
            self._held.discard(held)
        return held.news.result() if held.news.done() else self._standing(role, index, incarnation)

    def holds(self, incarnation: int) -> bool:
        """Whether this member waits here, so has an open connection."""
        return any(held.incarnation == incarnation for held in self._held)

    def wake_soon(self) -> None:
        """Looks for news once the inputs that are at hand are taken: many changes cost one look.

        A change by itself is told at once.  In a stream of them, as while a thousand members join, each of which may
        be news for all, there is time for other calls between two looks.
        """
        if self._waking is None:
            loop = asyncio.get_running_loop()
            rests = loop.time() < self._rests_until_s
            self._waking = loop.call_at(self._rests_until_s, self.wake) if rests else loop.call_soon(self.wake)

    def wake(self) -> None:
        """Ends the waits of those for whom there is news."""
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        self._rests_until_s = asyncio.get_running_loop().time() + REST_S * len(self._held)
        self._wake(list(self._held))

    def _wake(self, waits: Iterable[_Held]) -> None:
        for held in (held for held in waits if not held.news.done()):
            try:
                answer = self._standing(held.role, held.index, held.incarnation)
            except Exception as error:  # noqa: BLE001 - its own handler translates it, the others' waits go on
                held.news.set_exception(error)
            else:
                if answer.revision != held.seen_revision or self._closed:
                    held.news.set_result(answer)

    def wake_workers(self, indices: Collection[int]) -> None:
        """Ends the waits of these workers for whom there is news, at once."""
        self._wake([held for held in self._held if held.role is Role.WORKER and held.index in indices])

    def close(self) -> None:
        """Answers all that wait, as things stand; nothing is held from now on."""
        self._closed = True
        self.wake()
