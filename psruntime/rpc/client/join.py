"""Joining: asks until the process is admitted or it is clear that it will not be."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from psruntime.core.members.messages import Answer, Join, NotYet
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.client.retry import pause, retrying

ASK_AGAIN_S = 0.3  # a lost holder is replaced this much later; the coordinator may probe its address each time


def join_until_admitted(
    client: CoordinatorClient,
    place: Join,
    for_s: float,
    setting: str,
    stop: threading.Event,
    log: Callable[..., None],
) -> Answer:
    """The first answer as a member.  `place` says who and where; its join_id and waited_s are not used.

    `for_s` limits the time without the coordinator, not the time for which somebody else has the index: a
    lease ends that.

    Raises:
        UnreachableError: the coordinator was not reached for `for_s` seconds; `setting` is the flag for it.
        StopRequested: `stop` was set.
        IndexHeldError, OtherJobError, UsageError, JobDoneError, JobFailedError: as Coordinator.join.
    """
    join_id = secrets.token_hex(16)
    asked_s: float | None = None  # when the first try that was answered was made: before it, nobody was asked
    told = ""  # the tag of whom the log has named

    def ask() -> tuple[Answer | NotYet, float]:
        now_s = time.monotonic()
        waited_s = 0.0 if asked_s is None else now_s - asked_s
        return client.join(replace(place, join_id=join_id, waited_s=waited_s)), now_s

    while True:
        result, at_s = retrying(ask, for_s, stop, client.name, log, setting)
        if isinstance(result, Answer):
            return result
        asked_s = at_s if asked_s is None else asked_s
        if result.tag != told:  # the text of the reason tells ages, so it changes all the time
            log("join_waits", reason=result.reason)
        told = result.tag
        pause(stop, ASK_AGAIN_S)
