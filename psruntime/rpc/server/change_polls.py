"""Long polls that all ask again when something has changed.

Belongs to one event loop and is used in its thread only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class ChangePolls:
    """All of them ask again when what `update` is given is another than before: turns, as a rule once a round."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._revision: object = 0
        self._closed = False

    async def news(self, ask: Callable[[], T], is_news: Callable[[T], bool], max_wait_s: float) -> T:
        """The answer, as soon as it is worth one, at the latest after `max_wait_s`."""
        until_s = time.monotonic() + max_wait_s
        while True:
            changed, answer = self._changed, ask()
            left_s = until_s - time.monotonic()
            if is_news(answer) or left_s <= 0 or self._closed:
                return answer
            try:
                await asyncio.wait_for(changed.wait(), left_s)
            except (TimeoutError, asyncio.TimeoutError):
                continue

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
        self._changed.set()
        self._changed = asyncio.Event()
