"""Waiting in tests: for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import IO, TypeVar

T = TypeVar("T")
FIRST_DELAY_S, LONGEST_DELAY_S = 0.002, 0.1  # between two looks: each is twice the one before


def poll_until(predicate: Callable[[], T], timeout_s: float, what: str) -> T:
    """The first true value of the predicate; fails with `what` when none comes within `timeout_s`."""
    until_s, delay_s = time.monotonic() + timeout_s, FIRST_DELAY_S
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > until_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(delay_s)
        delay_s = min(2 * delay_s, LONGEST_DELAY_S)


def await_line(stream: IO[str] | None, wanted: str) -> str:
    """The first line that has these words."""
    assert stream
    found = next((line for line in iter(stream.readline, "") if wanted in line), "")
    assert found, wanted
    return found
