"""Workers that wait for their turn.  Belongs to one event loop and is used in its thread only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from psruntime.core.rounds.round_messages import Duty, Turn


class HeldTurns:
    """All of them look at their turns when the revision of the rounds changes: as a rule once a round."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._revision = 0
        self._closed = False

    async def change(self, turn_of: Callable[[], Turn], max_wait_s: float) -> Turn:
        """The worker's turn, as soon as there is something to do, at the latest after `max_wait_s`."""
        until_s = time.monotonic() + max_wait_s
        while True:
            changed, turn = self._changed, turn_of()
            left_s = until_s - time.monotonic()
            if turn.duty is not Duty.WAIT or left_s <= 0 or self._closed:
                return turn
            try:
                await asyncio.wait_for(changed.wait(), left_s)
            except (TimeoutError, asyncio.TimeoutError):
                continue

    def look(self, revision: int) -> None:
        """Wakes those who wait if the revision is another than before."""
        if revision != self._revision:
            self._revision = revision
            self._wake()

    def close(self) -> None:
        """Answers all that wait, as things stand; nobody waits from now on."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
