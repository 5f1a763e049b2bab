"""A process that fails again and again ends the job, but only one that gets nowhere, and not at once."""

from __future__ import annotations

import pytest

from psruntime.core.members.departures import ALONE_S, FIRST_S, LIMIT, RepeatedFailures
from psruntime.core.members.membership import JudgedClock, Role

PATIENCE_S = 60.0


class Timed(RepeatedFailures):
    """With a clock of its own."""

    def __init__(self) -> None:
        self.clock = JudgedClock(0.0, longest_gap_s=1.0)
        super().__init__(PATIENCE_S, self.clock)

    def at(self, now_s: float) -> None:
        """The time runs until then."""
        while self.clock.real_s < now_s:
            self.clock.advance(min(now_s, self.clock.real_s + 1.0))

    def pause(self, pause_s: float) -> None:
        """The coordinator does not run."""
        self.clock.advance(self.clock.real_s + pause_s)


def after(failures: int, of: int = 1, every_s: float = 10.0, pause_s: float = 0.0) -> Timed:
    """So many failures at global step 7, of that many workers in turn, at these intervals; a pause after the first."""
    found = Timed()
    found.trained(7)
    for number in range(failures):
        found.at(number * every_s)
        found.add(f"worker {number % of}", f"OSError {number}")
        found.pause(0.0 if number else pause_s)
    found.at(failures * every_s)
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
def test_it_may_yet_help_to_start_it_anew(found: Timed) -> None:
    assert found.why_hopeless() == ""


@pytest.mark.parametrize("step", [8, 3])
def test_a_job_that_trains_goes_on(step: int) -> None:
    found = after(LIMIT)
    found.trained(step)
    assert found.why_hopeless() == ""
    found.add("worker 0", "again")
    found.at(500.0)
    assert found.why_hopeless() == ""


def test_workers_that_ended_for_good_are_not_waited_for() -> None:
    found = Timed()
    found.left(Role.WORKER, 0, "wrong use", for_good=True)
    found.left(Role.WORKER, 1, "its lease ended", for_good=False)
    found.at(10 * ALONE_S)
    assert not found.why_too_few(0, 1, True), "worker 1 may come back"
    found.ended(1, "it has another model")
    assert not found.why_too_few(0, 1, True), "a person may correct it"
    found.at(11 * ALONE_S)
    assert found.why_too_few(0, 1, True) == "no worker is left: worker 1 has ended for good: it has another model"
    found.joined(0)
    found.left(Role.WORKER, 0, "it crashed", for_good=False)
    found.at(20 * ALONE_S)
    assert not found.why_too_few(0, 1, True)


def test_a_worker_that_is_started_again_and_again_does_not_keep_the_job_waiting() -> None:
    found = Timed()
    found.left(Role.WORKER, 0, "its lease ended", for_good=False)
    for second in range(int(ALONE_S) + 2):
        found.at(second)
        found.starts(0)
        assert not found.why_too_few(0, 1, True), "it may join this time"
        found.ended(0, "no such flag")
        assert bool(found.why_too_few(0, 1, True)) == (second >= ALONE_S)


def test_each_worker_that_is_started_gives_the_others_time_to_follow() -> None:
    """Worker 0 ended for good, worker 1 is started long after that, and worker 2 is yet to come."""
    found = Timed()
    found.ended(0, "no such flag")
    found.at(10 * FIRST_S)
    found.starts(1)
    assert not found.why_too_few(0, 2, False)
    found.at(10 * FIRST_S + 10.0)
    found.joined(1)
    found.at(11 * FIRST_S + 9.0)
    assert not found.why_too_few(1, 2, False)
    found.at(11 * FIRST_S + 10.0)
    assert found.why_too_few(1, 2, False).startswith("1 of at least 2 workers are left: worker 0 has ended")


@pytest.mark.parametrize(
    ("live", "ended", "started", "needed", "left"),
    [
        (0, 1, 0, 1, "no worker is left: "),
        (2, 1, 0, 3, "2 of at least 3 workers are left: "),
        (1, 1, 1, 3, "1 of at least 3 workers are left: "),
        (2, 2, 0, 3, "2 of at least 3 workers are left: "),
        (0, 0, 1, 1, ""),
        (0, 1, 1, 1, ""),
        (1, 1, 0, 3, ""),  # the third has not been seen yet
        (3, 1, 0, 3, ""),
        (0, 0, 0, 1, ""),
    ],
)
def test_a_job_that_has_not_begun_fails_once_too_few_of_its_workers_can_come(
    live: int, ended: int, started: int, needed: int, left: str
) -> None:
    found = Timed()
    for index in range(ended):
        found.ended(10 + index, "no such flag")
    for index in range(started):
        found.starts(20 + index)
    found.at(FIRST_S - 1.0)
    assert found.why_too_few(live, needed, False) == ""
    found.pause(9.0)
    assert found.why_too_few(live, needed, False) == "", "the coordinator was paused"
    found.at(FIRST_S + 9.0)
    why = found.why_too_few(live, needed, False)
    assert why == (f"{left}worker {9 + ended} has ended for good: no such flag" if left else "")
