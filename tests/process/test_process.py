"""How a process ends whose work does not: each test is a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.docs import ROOT
from tests.support.selection import long_but

PROGRAM = """
import os, signal, sys, time
from psruntime.errors import StopRequested
from psruntime.observe.log import Log
from psruntime.process.process import run

def stops(process):
    process.stop.wait(60)
    raise StopRequested("asked to stop")

def heeds_the_stop(process):
    process.end_within(0.1, {code})
    stops(process)

def is_stuck(process):
    process.at_exit.callback(print, "left")
    process.end_within(0.1, {code})
    process.end_within(60, 99)  # the first one counts
    time.sleep(60)

def ends_in_time(process):
    process.end_within(60, {code})
    return 7

def ends_in_good_order(process):
    process.ends_in_good_order(60)
    os.kill(os.getpid(), signal.SIGTERM)
    assert process.asked.wait(10) and not process.stop.is_set()
    time.sleep(0.3)
    assert not process.stop.is_set()
    print("saved")
    raise StopRequested("asked to stop")

def takes_too_long(process):
    process.ends_in_good_order(0.1)
    os.kill(os.getpid(), signal.SIGTERM)
    stops(process)

def is_asked_twice(process):
    process.ends_in_good_order(60)
    os.kill(os.getpid(), signal.SIGTERM)
    process.asked.wait(10)
    os.kill(os.getpid(), signal.SIGINT)
    stops(process)

def is_done_when_it_is_asked(process):
    process.ends_in_good_order(60)
    os.kill(os.getpid(), signal.SIGTERM)
    process.asked.wait(10)
    return 0

def promises_nothing(process):
    os.kill(os.getpid(), signal.SIGTERM)
    stops(process)

def leaves_a_graph_behind(process):
    import threading
    import tensorflow.compat.v1 as tf1

    def build():
        with tf1.Graph().as_default():
            begun.set()
            while True:
                tf1.square(tf1.constant(1.0))

    begun = threading.Event()
    thread = threading.Thread(target=build, daemon=True)
    thread.start()
    assert begun.wait(60)
    process.is_busy = thread.is_alive
    process.at_exit.callback(print, "left")
    return {code}

def crashes(process):
    raise ZeroDivisionError

sys.exit(run(Log("worker", 0), {work}, "{lifeline}", {restart_code}))
"""


def ended(
    work: str, code: int = 0, lifeline: str = "", before: str = "", restart_code: int = 75
) -> tuple[int, str]:  # fmt: skip
    """Exit code and output of a process whose stdin ends at once.  before: lines of the program's own."""
    program = PROGRAM.format(work=work, code=code, lifeline=lifeline, restart_code=restart_code)
    done = subprocess.run(
        [sys.executable, "-c", before + program],
        cwd=ROOT, input="", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.parametrize("code", long_but([1], [0, 1, 2]))
def test_work_that_is_stuck_after_the_end_is_left_behind(code: int) -> None:
    ended_with, output = ended("is_stuck", code)
    assert ended_with == code
    assert 'stopping reason="the work did not end within 0.1 s after its end was known"' in output
    assert "abandoned" in output and "left" in output


def test_work_that_stops_when_it_is_asked_is_not_left_behind() -> None:
    ended_with, output = ended("heeds_the_stop", code=1)
    assert ended_with == 1
    assert "stopping" in output and "abandoned" not in output


@pytest.mark.long
def test_a_thread_that_still_builds_a_graph_does_not_abort_the_process() -> None:
    ended_with, output = ended("leaves_a_graph_behind", code=3)
    assert ended_with == 3
    assert "left" in output and " exit code=3" in output


def test_work_that_ends_in_time_says_how() -> None:
    ended_with, output = ended("ends_in_time")
    assert ended_with == 7
    assert "stopping" not in output


def test_a_crash_says_that_the_process_may_be_started_again() -> None:
    ended_with, output = ended("crashes")
    assert ended_with == 75
    assert "crash reason=ZeroDivisionError\n    Traceback (most recent call last):\n" in output


@pytest.mark.parametrize(
    ("work", "code", "ends_with"), [("crashes", 0, 143), ("ends_in_time", 0, 7), ("is_stuck", 75, 143)]
)
def test_another_code_may_ask_for_the_restart(work: str, code: int, ends_with: int) -> None:
    ended_with, output = ended(work, code, restart_code=143)
    assert ended_with == ends_with and f" exit code={ends_with}" in output


def test_a_first_signal_lets_the_work_end_in_good_order() -> None:
    ended_with, output = ended("ends_in_good_order")
    assert ended_with == 143
    assert "stopping signal=SIGTERM within_s=62" in output and "saved" in output and "abandoned" not in output


@pytest.mark.parametrize("work", ["takes_too_long", "promises_nothing"])
def test_work_that_does_not_end_in_good_order_is_stopped(work: str) -> None:
    ended_with, output = ended(work)
    assert ended_with == 143
    assert "stopping signal=SIGTERM" in output and "abandoned" not in output


def test_a_second_signal_stops_at_once() -> None:
    ended_with, output = ended("is_asked_twice")
    assert ended_with == 143, "the code is that of the first"
    assert 'stopping signal=SIGINT reason="the second signal: nothing is waited for"' in output


def test_work_that_was_done_before_it_stopped_is_done() -> None:
    ended_with, _ = ended("is_done_when_it_is_asked")
    assert ended_with == 0


def test_the_end_of_stdin_ends_a_process_in_good_order_or_at_once() -> None:
    ended_with, output = ended("stops", lifeline="end")
    assert ended_with == 143 and "stopping signal=SIGTERM" in output
    ended_with, output = ended("stops", lifeline="kill")
    assert ended_with == -9 and "stopping" not in output


def test_a_handler_that_there_was_before_is_called_too() -> None:
    before = "import signal; signal.signal(signal.SIGTERM, lambda *_: print('passed on', flush=True))"
    ended_with, output = ended("ends_in_good_order", before=before)
    assert ended_with == 143 and output.count("passed on") == 1
