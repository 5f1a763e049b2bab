"""A session whose user is paused at some moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Paused:
    """Like `session`, but before its run number `at` another does what it likes.

    meanwhile: what that one does.  was: whether it came to that; what `meanwhile` returned is `found`.
    """

    def __init__(self, session: Any, at: int, meanwhile: Callable[[], Any]) -> None:
        self.was = False
        self.found: Any = None
        self._runs = 0
        self._session, self._at, self._meanwhile = session, at, meanwhile

    def run(self, *arguments: Any, **settings: Any) -> Any:
        self._runs += 1
        if self._runs == self._at:
            self.was, self.found = True, self._meanwhile()
        return self._session.run(*arguments, **settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)
