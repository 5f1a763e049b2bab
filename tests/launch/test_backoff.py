"""Which ends are crashes, and how long after one a process is started again."""

from __future__ import annotations

import signal

import pytest

from psruntime.errors import (
    IndexHeldError,
    JobDoneError,
    JobFailedError,
    PsRuntimeError,
    ReplacedError,
    UnreachableError,
    UsageError,
)
from psruntime.launch.children import FIRST_DELAY_S, LONGEST_DELAY_S, STEADY_S, Backoff, crashed


@pytest.mark.parametrize("code", [-signal.SIGKILL, -signal.SIGSEGV, 128 + signal.SIGTERM, 75, 120])
def test_whoever_was_killed_or_crashed_may_come_back(code: int) -> None:
    assert crashed(code)


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_word_on_the_job_is_final(code: int) -> None:
    assert not crashed(code)


def test_errors_end_a_process_with_a_code_that_says_whether_it_may_come_back() -> None:
    again = [PsRuntimeError, ReplacedError, UnreachableError]
    final = [JobDoneError, JobFailedError, UsageError, IndexHeldError]
    assert [crashed(error.exit_code) for error in (*again, *final)] == [True] * 3 + [False] * 4


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(10)
    delays = [backoff.delay_s(lived_s=1.0) for _ in range(10)]
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30, 30, 30]
    assert (delays[0], delays[-1]) == (FIRST_DELAY_S, LONGEST_DELAY_S)


def test_the_limit_is_for_all_of_the_job() -> None:
    backoff = Backoff(2)
    assert [backoff.delay_s(STEADY_S) for _ in range(4)] == [FIRST_DELAY_S, FIRST_DELAY_S, None, None]
    assert backoff.restarts == 2
    assert Backoff(0).delay_s(1e6) is None


def test_after_a_steady_life_the_pauses_begin_anew() -> None:
    backoff = Backoff(100)
    lives = [1.0, 1.0, 1.0, STEADY_S - 0.1, STEADY_S, 1.0, 1.0]
    assert [backoff.delay_s(lived_s) for lived_s in lives] == [0.5, 1, 2, 4, 0.5, 1, 2]
