"""When a worker reports its clock."""

from __future__ import annotations

import pytest

from psruntime.core.clocks.report_schedule import FIRST_HOLD_S, PAUSE_S, REPORT_S, Reporting

BOUND = 8
HOLD_S = 3.0
FAR_S = 100.0  # told by the coordinator


def reporting(entry: int = 0) -> Reporting:
    """Of a worker that has made one step and told it at time 0, when the floor was at its entry."""
    reports = Reporting(BOUND, entry, HOLD_S)
    reports.space(FAR_S)
    reports.at(1)
    reports.end(reports.begin(0.0), entry)
    return reports


def test_it_enters_at_the_floor_and_the_first_step_of_the_slowest_goes_out_at_once():
    reports = Reporting(BOUND, 5, HOLD_S)
    assert reports.wait_s(0.0) is None
    assert reports.at(1)
    assert reports.wait_s(0.0) == 0.0
    report = reports.begin(0.0)
    assert (report.clock, report.steps, report.wanted_floor) == (6, 1, 0)
    reports.end(report, 6)
    reports.at(2)
    assert reports.wait_s(0.0) == 0.0, "it is the slowest again, as far as it knows"


def test_what_is_urgent_stays_so_however_many_steps_follow_before_the_call():
    reports = Reporting(BOUND, 0, HOLD_S)
    reports.space(FAR_S)
    reports.end(reports.begin(0.0), 0)
    reports.at(1)
    reports.at(2)
    assert reports.wait_s(1.0) == 0.0


def test_far_from_the_bound_it_leaves_the_time_that_it_was_told():
    reports = reporting()
    assert reports.at(2), "who waited for nothing has to look"
    assert reports.wait_s(1.0) == FAR_S - 1
    assert reports.space(10.0)
    assert reports.wait_s(1.0) == 9.0
    assert not reports.space(FAR_S)
    assert reports.space(0.0)
    assert reports.wait_s(0.0) == REPORT_S


@pytest.mark.parametrize(("steps", "waits_s"), [(2, FAR_S), (3, REPORT_S)])
def test_a_quarter_of_the_bound_is_told_soon(steps, waits_s):
    reports = reporting()
    reports.at(steps)
    assert reports.wait_s(0.0) == waits_s


def test_in_the_upper_half_of_the_bound_every_step_is_told_soon():
    reports = reporting()
    reports.at(4)
    reports.end(reports.begin(1.0), 0)
    assert reports.at(5)
    assert reports.wait_s(1.0) == pytest.approx(REPORT_S)
    reports.end(reports.begin(2.0), 3)
    reports.at(6)
    assert reports.wait_s(2.0) == FAR_S, "the floor has risen"


def test_at_the_bound_it_asks_at_once_for_the_floor_that_it_needs_and_again_for_longer():
    reports = reporting(entry=2)
    reports.at(BOUND + 1)
    assert reports.is_shut
    first = reports.begin(1.0)
    assert (first.wanted_floor, first.hold_s) == (3, FIRST_HOLD_S)
    reports.end(first, 2)
    assert reports.wait_s(1.0) == pytest.approx(REPORT_S + PAUSE_S)
    again = reports.begin(2.0)
    assert again.hold_s == HOLD_S
    reports.end(again, 3)
    assert not reports.is_shut
    assert reports.wait_s(3.0) is None


def test_a_call_that_failed_is_repeated_after_a_pause_and_changes_nothing():
    reports = reporting()
    reports.at(3)
    reports.end(reports.begin(1.0), None)
    assert reports.floor == 0
    assert reports.wait_s(1.0) == pytest.approx(REPORT_S + PAUSE_S)


def test_a_late_answer_does_not_lower_the_floor():
    reports = reporting()
    reports.at(3)
    report = reports.begin(1.0)
    reports.end(report, 2)
    reports.end(report, 1)
    assert reports.floor == 2
