"""When a worker reports its clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psruntime.core.clocks.clocks import FIRST_POLL_S, REPORT_S, RETRY_S, ClockAnswer, ClockReport, ReportSchedule
from psruntime.core.members.messages import Assignment
from psruntime.core.members.view import PsEntry, View

BOUND = 8
LONGEST_S = 3.0
FAR_S = 100.0  # told by the coordinator


def a_schedule(entry: int, bound: int = BOUND) -> ReportSchedule:
    """Of worker 4, which entered view 2 at this clock."""
    return ReportSchedule(bound, 4, Assignment(View(2), 77, prepare=False, clock=entry), LONGEST_S)


def reporting(entry: int = 0, bound: int = BOUND) -> ReportSchedule:
    """Of a worker that has made one step and told it at time 0, when the floor was at its entry."""
    reports = a_schedule(entry, bound)
    reports.space(FAR_S)
    reports.completed(1)
    reports.end(reports.begin(0.0), ClockAnswer(entry))
    return reports


def test_it_enters_at_the_floor_and_the_first_step_of_the_slowest_goes_out_at_once():
    reports = a_schedule(5)
    assert reports.wait_s(0.0) is None
    assert reports.completed(1)
    assert reports.wait_s(0.0) == 0.0
    report = reports.begin(0.0)
    assert report == ClockReport(4, 77, 2, steps=1), "nobody has to wait: answer at once"
    assert reports.clock == 6
    reports.end(report, ClockAnswer(6))
    reports.completed(2)
    assert reports.wait_s(0.0) == 0.0, "it is the slowest again, as far as it knows"


def test_what_is_urgent_stays_so_however_many_steps_follow_before_the_call():
    reports = a_schedule(0)
    reports.space(FAR_S)
    reports.end(reports.begin(0.0), ClockAnswer(0))
    reports.completed(1)
    reports.completed(2)
    assert reports.wait_s(1.0) == 0.0


def test_far_from_the_bound_it_leaves_the_time_that_it_was_told():
    reports = reporting()
    assert reports.completed(2), "who waited for nothing has to look"
    assert reports.wait_s(1.0) == FAR_S - 1
    assert reports.space(10.0)
    assert reports.wait_s(1.0) == 9.0
    assert not reports.space(FAR_S)
    assert reports.space(0.0)
    assert reports.wait_s(0.0) == REPORT_S


@pytest.mark.parametrize(("steps", "waits_s"), [(2, FAR_S), (3, REPORT_S)])
def test_a_quarter_of_the_bound_is_told_soon(steps, waits_s):
    reports = reporting()
    reports.completed(steps)
    assert reports.wait_s(0.0) == waits_s


def test_in_the_upper_half_of_a_small_bound_every_step_is_told_soon():
    reports = reporting()
    reports.completed(4)
    reports.end(reports.begin(1.0), ClockAnswer(0))
    assert reports.completed(5)
    assert reports.wait_s(1.0) == pytest.approx(REPORT_S)
    reports.end(reports.begin(2.0), ClockAnswer(3))
    reports.completed(6)
    assert reports.wait_s(2.0) == FAR_S, "the floor has risen"


@pytest.mark.parametrize(("lead", "untold"), [(61, 5), (78, 3), (94, 1)])
def test_the_nearer_to_the_bound_the_sooner_a_step_is_told(lead, untold):
    reports = reporting(bound=100)
    reports.completed(lead - untold)
    reports.end(reports.begin(0.0), ClockAnswer(0))
    reports.completed(lead - 1)
    assert reports.wait_s(0.0) == (FAR_S if untold > 1 else None)
    assert reports.completed(lead)
    assert reports.wait_s(0.0) == pytest.approx(REPORT_S)


def test_at_the_bound_it_asks_at_once_for_the_floor_that_it_needs_and_again_for_longer():
    reports = reporting(entry=2)
    reports.completed(BOUND + 1)
    assert reports.is_shut
    first = reports.begin(1.0)
    assert (first.wanted_floor, first.max_wait_s) == (3, FIRST_POLL_S)
    reports.end(first, ClockAnswer(2))
    assert reports.wait_s(1.0) == pytest.approx(REPORT_S + RETRY_S)
    again = reports.begin(2.0)
    assert again.max_wait_s == LONGEST_S
    reports.end(again, ClockAnswer(3))
    assert not reports.is_shut
    assert reports.wait_s(3.0) is None


def test_a_call_that_failed_is_repeated_after_a_pause_and_changes_nothing():
    reports = reporting()
    reports.completed(3)
    reports.end(reports.begin(1.0), None)
    assert reports.floor == 0
    assert reports.wait_s(1.0) == pytest.approx(REPORT_S + RETRY_S)


def test_a_late_answer_does_not_lower_the_floor():
    reports = reporting()
    reports.completed(3)
    report = reports.begin(1.0)
    reports.end(report, ClockAnswer(2))
    reports.end(report, ClockAnswer(1))
    assert reports.floor == 2


def test_another_clock_in_the_same_view_begins_anew() -> None:
    """Two changes of mode may come while a worker has no session; its clock is another one then."""
    assignment = Assignment(View(3, (PsEntry(0, "10.0.0.1:1", 5),)), 9, prepare=False, clock=50)
    schedule = ReportSchedule(4, 0, assignment, 3.0, steps=6)
    assert schedule.serves(replace(assignment, prepare=True)) and not schedule.serves(replace(assignment, clock=950))
    assert (schedule.clock, schedule.floor, schedule.lead) == (56, 56, 0) and schedule.wait_s(0.0) is None
