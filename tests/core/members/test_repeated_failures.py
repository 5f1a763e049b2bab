"""A process that fails again and again ends the job, but only one that gets nowhere, and not at once."""

from __future__ import annotations

import pytest

from psruntime.core.members.membership import Member, Role
from psruntime.core.members.repeated_failures import ALONE_S, LIMIT, RepeatedFailures

PATIENCE_S = 60.0


def worker(index: int) -> Member:
    return Member(Role.WORKER, index, "a:1", "a:2", "id", 1, 0.0, 0.0, 0.0)


def after(failures: int, of: int = 1, every_s: float = 10.0, pause_s: float = 0.0) -> RepeatedFailures:
    """So many failures at global step 7, of that many workers in turn, at these intervals."""
    found = RepeatedFailures(PATIENCE_S)
    found.trained(7)
    for number in range(failures):
        found.advance(number * every_s, 0.0)
        found.add(worker(number % of), f"OSError {number}")
    found.advance(failures * every_s, pause_s)
    return found


def test_a_process_that_fails_again_and_again_ends_the_job() -> None:
    said = f"worker 0 failed {LIMIT} times in 100 s at global step 7, the last time: OSError {LIMIT - 1}"
    assert after(LIMIT).why_hopeless() == said


@pytest.mark.parametrize(
    "found",
    [
        after(0),
        after(LIMIT - 1, every_s=100.0),
        after(LIMIT, every_s=1.0),  # an outage that many fail of, and are started anew at once
        after(LIMIT, pause_s=50.0),
        after(5 * (LIMIT - 1), of=5),
    ],
    ids=["none", "a few", "all within the patience", "the coordinator was paused", "each a few times"],
)
def test_it_may_yet_help_to_start_it_anew(found: RepeatedFailures) -> None:
    assert found.why_hopeless() == ""


@pytest.mark.parametrize("step", [8, 3])
def test_a_job_that_trains_goes_on(step: int) -> None:
    found = after(LIMIT)
    found.trained(step)
    assert found.why_hopeless() == ""
    found.add(worker(0), "again")
    found.advance(500.0, 0.0)
    assert found.why_hopeless() == ""


def test_workers_that_ended_for_good_are_not_waited_for() -> None:
    found = RepeatedFailures(PATIENCE_S)
    found.left(worker(0), "wrong use", for_good=True)
    found.left(worker(1), "its lease ended", for_good=False)
    found.advance(10 * ALONE_S, 0.0)
    assert not found.why_nobody_comes(), "worker 1 may come back"
    found.refused(1, "it has another model")
    found.refused(2, "it has another model")  # one that never was a member says nothing of those that were
    assert found.why_nobody_comes() == "no worker is left: worker 1 has ended for good: it has another model"
    found.joined(worker(0))
    found.left(worker(0), "it crashed", for_good=False)
    found.advance(20 * ALONE_S, 0.0)
    assert not found.why_nobody_comes()
