"""Who watches a job, by asking for its status again and again: each is to hear that it is over, and how it ended.

Belongs to one event loop and is used in its thread only.
"""

from __future__ import annotations

from collections import OrderedDict

AGAIN_S = 2.5  # after which somebody who has not asked again does not watch any more; who does asks every second
SOON_S = 1.2  # the same, where the process was asked to stop
MOST = 1000  # that are remembered


class Watchers:
    """By the address of the connection.  Times in seconds, of one clock."""

    def __init__(self) -> None:
        self._asked_s: OrderedDict[str, float] = OrderedDict()  # who asked while the job was not over; the latest last

    def ask(self, peer: str, is_over: bool, now_s: float) -> None:
        """One asks, and is told whether the job is over."""
        self._asked_s.pop(peer, None)
        if not is_over:
            self._asked_s[peer] = now_s
        if len(self._asked_s) > MOST:
            self._asked_s.popitem(last=False)

    def are_to_hear(self, now_s: float, within_s: float = AGAIN_S) -> bool:
        """Whether somebody who asked within that time has not been told that the job is over."""
        latest_s = next(reversed(self._asked_s.values()), None)
        return latest_s is not None and now_s - latest_s < within_s
