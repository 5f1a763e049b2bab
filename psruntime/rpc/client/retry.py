"""Repeats a call until the coordinator is reached."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from psruntime.errors import PsRuntimeError, StopRequested, UnreachableError

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0  # a coordinator that is back is found within it
LOOK_S = 0.1  # how often a pause looks at the stop event

T = TypeVar("T")


def retrying(
    call: Callable[[], T],
    for_s: float,
    stop: threading.Event,
    what: str,
    log: Callable[..., None],
    setting: str = "--connect-timeout",
) -> T:
    """Makes the call until it is answered, with growing pauses.  Logs when it begins to wait and when that ends.

    `what` is whom the call reaches, `setting` the flag that sets `for_s`, both for people.

    Raises:
        UnreachableError: not answered within `for_s` seconds.
        StopRequested: `stop` was set.
        Other errors of the call, at once.
    """
    began_s = time.monotonic()
    pause_s = FIRST_PAUSE_S
    waits = False
    while True:
        if stop.is_set():
            raise StopRequested(f"asked to stop while {what} was not reached")
        try:
            result = call()
        except UnreachableError as error:
            left_s = began_s + for_s - time.monotonic()
            if left_s <= 0:
                raise UnreachableError(
                    f"{what} was not reached for {for_s:g} s; is ps 0 running there? ({setting}) last try: {error}"
                ) from None
            if not waits:
                log("unreachable", what=what, error=str(error), gives_up_after_s=for_s)
            waits = True
            pause(stop, min(left_s, pause_s * random.uniform(0.5, 1.0)))  # apart, so that callers do not come at once
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            continue
        except PsRuntimeError:  # an answer, if not a welcome one
            _note_reached(waits, what, began_s, log)
            raise
        _note_reached(waits, what, began_s, log)
        return result


def _note_reached(waited: bool, what: str, began_s: float, log: Callable[..., None]) -> None:
    if waited:
        log("reached", what=what, after_s=time.monotonic() - began_s)


def pause(stop: threading.Event, for_s: float) -> None:
    """Sleeps, or until `stop` is set.

    It looks at the event instead of waiting for it: a signal handler that sets the event while the same
    thread is inside `Event.wait` may find the event's lock taken, and would block for ever.
    """
    until_s = time.monotonic() + for_s
    while not stop.is_set() and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, LOOK_S))
