"""The newest answer: late ones change nothing, waits end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psruntime.core.members.messages import Answer, Standing
from psruntime.core.members.view import Phase, View
from psruntime.errors import JobDoneError, ReplacedError, StopRequested
from psruntime.rpc.client.latest_answer import LatestAnswer

relaxed = settings(deadline=None)  # the machine may be busy with other tests
STANDING = Standing(Phase.FORMING, "", View())


def answer(incarnation: int, revision: int, floor: int = 0) -> Answer:
    return Answer(incarnation, STANDING, revision, floor)


@relaxed
@given(st.permutations([(revision, floor) for revision in (1, 2, 3) for floor in (0, 5)]))
def test_answers_in_any_order_end_with_the_newest(order):
    latest = LatestAnswer()
    latest.admit(answer(7, 1))
    for revision, floor in order:
        latest.offer(answer(7, revision, floor))
    assert latest.get() == answer(7, 3, 5)


def test_an_answer_to_an_incarnation_before_changes_nothing():
    latest = LatestAnswer()
    latest.offer(answer(1, 1))
    latest.admit(answer(1, 9))
    latest.admit(answer(2, 1))
    latest.offer(answer(1, 10))
    assert latest.get() == answer(2, 1)


def test_there_is_no_answer_before_the_first():
    with pytest.raises(RuntimeError, match="taken first"):
        LatestAnswer().get()


def test_a_wait_sees_what_is_there_and_what_comes():
    latest, stop = LatestAnswer(), threading.Event()
    latest.admit(answer(1, 1))
    assert latest.wait_until(lambda a: a.revision == 1, None, stop) == answer(1, 1)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(latest.wait_until, lambda a: a.revision == 3, None, stop)
        latest.offer(answer(1, 2))
        latest.offer(answer(1, 3))
        assert waits.result(30) == answer(1, 3)


def test_a_wait_has_an_end():
    latest = LatestAnswer()
    assert latest.wait_until(lambda _: True, 0.05, threading.Event()) is None
    latest.admit(answer(1, 1))
    assert latest.wait_until(lambda _: False, 0.05, threading.Event()) is None


def test_a_stop_ends_a_wait():
    latest, stop = LatestAnswer(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(latest.wait_until, lambda _: True, None, stop)
        stop.set()
        with pytest.raises(StopRequested):
            waits.result(30)


def test_the_first_failure_ends_every_wait():
    latest, stop = LatestAnswer(), threading.Event()
    latest.admit(answer(1, 1))
    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(latest.wait_until, lambda _: False, None, stop) for _ in range(2)]
        latest.fail(JobDoneError("the job is done"))
        latest.fail(ReplacedError("later"))
        for wait in waits:
            with pytest.raises(JobDoneError, match="the job is done"):
                wait.result(30)
    with pytest.raises(JobDoneError):
        latest.wait_until(lambda _: True, None, stop)
