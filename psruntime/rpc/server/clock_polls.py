"""Clock reports that are held back until the floor is where their workers wait for it.

Belongs to one event loop and is used in its thread only.
"""

from __future__ import annotations

import asyncio

from psruntime.core.members.view import Phase

Era = tuple[int, Phase]  # number of the view, and what the job does


class HeldReports:
    """The reports that wait, by the floor that they want: a floor that rises costs a look at those it reaches."""

    def __init__(self) -> None:
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}  # wanted floor -> its waits; no empty sets
        self._floor = 0
        self._era: Era | None = None
        self._closed = False

    def __len__(self) -> int:
        return sum(len(waits) for waits in self._waiting.values())

    async def reached(self, wanted_floor: int, max_wait_s: float) -> None:
        """Waits for the floor, for another view or phase, or for `max_wait_s`.  Whoever waits asks again then."""
        if self._closed or max_wait_s <= 0:
            return
        released = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(wanted_floor, set()).add(released)
        try:
            await asyncio.wait({released}, timeout=max_wait_s)
        finally:
            self._discard(wanted_floor, released)

    def moved(self, floor: int, era: Era) -> None:
        """After every input of the coordinator: where things stand now."""
        if era != self._era:
            self._era, self._floor = era, floor
            self._release(list(self._waiting))
        elif floor != self._floor:
            self._floor = floor
            self._release([wanted for wanted in self._waiting if wanted <= floor])

    def close(self) -> None:
        """Ends all waits; nothing is held from now on."""
        self._closed = True
        self._release(list(self._waiting))

    def _release(self, floors: list[int]) -> None:
        for wanted in floors:
            for released in self._waiting.pop(wanted):
                if not released.done():
                    released.set_result(None)

    def _discard(self, wanted_floor: int, released: asyncio.Future[None]) -> None:
        waits = self._waiting.get(wanted_floor, set())
        waits.discard(released)
        if not waits:
            self._waiting.pop(wanted_floor, None)
