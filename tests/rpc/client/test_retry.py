"""Repeating until the coordinator is there."""

from __future__ import annotations

import threading

import pytest

from psruntime.config import JobConfig
from psruntime.errors import ReplacedError, StopRequested, UnreachableError, UsageError
from psruntime.rpc.client import join
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.client.join import retrying
from tests.rpc.conftest import Events
from tests.support.polling import poll_until


class Calls:
    """Fails as often as it is told to, then answers."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        self.failures = failures
        self.error = error or UnreachableError("refused")
        self.made = 0

    def __call__(self) -> str:
        self.made += 1
        if self.made <= self.failures:
            raise self.error
        return "answer"


def test_an_answer_at_once_is_not_worth_a_line():
    log = Events()
    assert retrying(Calls(0), 10, threading.Event(), "coordinator h:1", log) == "answer"
    assert log == []


def test_the_wait_is_logged_when_it_begins_and_when_it_ends():
    log = Events()
    assert retrying(Calls(2), 60, threading.Event(), "coordinator h:1", log) == "answer"
    assert [event for event, _ in log] == ["unreachable", "reached"]
    assert log.named("unreachable") == [{"what": "coordinator h:1", "error": "refused", "gives_up_after_s": 60}]


def test_an_error_that_is_an_answer_ends_the_wait_too():
    log = Events()
    calls = iter([UnreachableError("refused"), ReplacedError("join again")])

    def call() -> None:
        raise next(calls)

    with pytest.raises(ReplacedError):
        retrying(call, 60, threading.Event(), "coordinator h:1", log)
    assert [event for event, _ in log] == ["unreachable", "reached"]


def test_delays_grow_and_stay_short(monkeypatch):
    delays: list[float] = []
    monkeypatch.setattr(join, "delay", lambda _stop, for_s: delays.append(for_s))
    retrying(Calls(12), 10**9, threading.Event(), "coordinator h:1", Events())
    assert delays[0] <= join.FIRST_DELAY_S
    assert join.LONGEST_DELAY_S / 2 <= min(delays[6:]) <= max(delays) <= join.LONGEST_DELAY_S
    assert len(set(delays)) == len(delays), "callers come apart"


def test_the_last_line_says_where_and_what_to_do():
    calls = Calls(10**9)
    with pytest.raises(UnreachableError) as gave_up:
        retrying(calls, 0.3, threading.Event(), "coordinator h:1", Events())
    assert str(gave_up.value) == (
        "coordinator h:1 was not reached for 0.3 s; is ps 0 running there? (--connect-timeout) last try: refused"
    )
    assert calls.made > 1


def test_another_error_is_not_repeated():
    calls = Calls(1, UsageError("wrong"))
    with pytest.raises(UsageError):
        retrying(calls, 60, threading.Event(), "coordinator h:1", Events())
    assert calls.made == 1


def test_a_stop_ends_it():
    stop = threading.Event()

    def call() -> None:
        stop.set()
        raise UnreachableError("refused")

    with pytest.raises(StopRequested):
        retrying(call, 10**9, stop, "coordinator h:1", Events())


def test_a_coordinator_that_comes_later_is_found(stage):
    address = stage.refusing()
    client = CoordinatorClient(address)
    log = Events()
    found: list[JobConfig] = []
    caller = threading.Thread(
        target=lambda: found.append(retrying(client.get_job, 60, threading.Event(), "coordinator", log))
    )
    caller.start()
    poll_until(lambda: log.named("unreachable"), 10, "the caller waits")
    stage.coordinator(JobConfig(ps=7), address)
    caller.join(60)
    client.close()
    assert found == [JobConfig(ps=7)]
