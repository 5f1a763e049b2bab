"""Long polls of clock reports: each waits until the floor is where its worker needs it.

Belongs to one event loop and is used in its thread only.
"""

from __future__ import annotations

import asyncio

from psruntime.core.members.view import Phase

Era = tuple[int, Phase]  # number of the view, and what the job does


class ClockPolls:
    """The polls by the floor that they want, so that a rise of the floor only touches those that it reaches."""

    def __init__(self) -> None:
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}  # wanted floor -> its polls; no empty sets
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
        self._waiting.setdefault(wanted_floor, set()).add(released)
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
        polls = self._waiting.get(wanted_floor, set())
        polls.discard(released)
        if not polls:
            self._waiting.pop(wanted_floor, None)
