"""One question a second, whatever comes of it."""

from __future__ import annotations

import threading

from psruntime.commands.dashboard import Poller
from psruntime.errors import UnreachableError
from tests.observe.test_render import JOB, STATUS
from tests.support.polling import poll_until


def test_it_goes_on_after_failures_and_leaves_no_thread() -> None:
    asked, heard, missed = [], [], []

    def ask():
        asked.append(threading.current_thread().name)
        if len(asked) == 2:
            raise UnreachableError("coordinator a:1: down")
        return STATUS, JOB

    poller = Poller(ask, lambda *answer: heard.append(answer), lambda *why: missed.append(why), every_s=0.01)
    poller.start()
    poll_until(lambda: len(heard) >= 3, 10, "answers after a failure")
    poller.stop()
    assert [reason for reason, _ in missed] == ["coordinator a:1: down"]
    assert heard[0][:2] == (STATUS, JOB)
    assert set(asked) == {"status-poller"}
    assert "status-poller" not in {thread.name for thread in threading.enumerate()}


def test_a_failure_of_the_end_is_none() -> None:
    missed, asking, closed = [], threading.Event(), threading.Event()

    def ask():
        asking.set()
        closed.wait(10)
        raise UnreachableError("the channel is closed")

    poller = Poller(ask, lambda *_: None, lambda *why: missed.append(why))
    poller.start()
    assert asking.wait(10)
    threading.Timer(0.05, closed.set).start()
    poller.stop()
    assert not missed
