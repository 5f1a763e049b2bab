"""Waiting in tests: for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def poll_until(predicate: Callable[[], T], timeout_s: float, what: str) -> T:
    """The first true value of the predicate; fails with `what` when none comes within `timeout_s`."""
    until_s = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > until_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.01)
