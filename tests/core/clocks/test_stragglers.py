"""How often many workers report, and who is a straggler."""

from __future__ import annotations

from psruntime.config import JobConfig
from psruntime.core.clocks.clocks import LEAST_BOUND, REPORT_S, REPORTS_PER_S, SPREAD, spacing_s
from psruntime.core.clocks.pace import Pace
from psruntime.core.members.membership import JudgedClock, Member, Role

MANY = 1000


def a_pace(bound: int, workers: int = MANY) -> tuple[Pace, list[Member]]:
    pace = Pace(JobConfig(mode="bounded", bound=bound), JudgedClock(0.0))
    members = [Member(Role.WORKER, i, "", "", "", 100 + i, 0.0, 0.0, 0.0) for i in range(workers)]
    pace.begin(members)
    return pace, members


def test_few_workers_and_those_with_a_small_bound_leave_the_least_time():
    assert {spacing_s(100, 5, worker) for worker in range(5)} == {REPORT_S}
    assert spacing_s(LEAST_BOUND - 1, MANY, 5) == REPORT_S
    assert Pace(JobConfig(), JudgedClock(0.0)).report_every_s(a_pace(8, 1)[1][0]) == 0.0, "none reports in async"


def test_all_together_make_about_as_many_reports_as_one_core_answers():
    for workers in (11, 100, 640, MANY, 5000):
        each_s = [spacing_s(LEAST_BOUND, workers, worker) for worker in range(workers)]
        assert REPORTS_PER_S / 2 < sum(1 / s for s in each_s) <= REPORTS_PER_S / (1 - SPREAD)


def test_who_is_behind_by_more_than_half_of_the_bound_is_a_straggler_until_it_has_caught_up():
    pace, members = a_pace(bound=8)
    fast, slow, *rest = members
    for worker in rest:
        pace.report(worker, 4)
    pace.report(fast, 4)
    assert pace.stragglers.take_news() == []
    pace.report(fast, 5)
    assert pace.stragglers.take_news() == [slow.index]
    assert pace.report_every_s(slow) == REPORT_S < pace.report_every_s(rest[0])
    pace.report(fast, 6)
    assert pace.stragglers.take_news() == [], "it was told"
    pace.report(slow, 3)
    assert pace.report_every_s(slow) == REPORT_S
    pace.report(slow, 4)
    assert pace.report_every_s(slow) > REPORT_S


def test_many_stragglers_share_what_there_is_room_for():
    pace, members = a_pace(bound=100)
    late = members[:400]
    for worker in members[400:]:
        pace.report(worker, 51)
    each_s = [pace.report_every_s(worker) for worker in late]
    assert REPORTS_PER_S / 2 < sum(1 / s for s in each_s) <= REPORTS_PER_S / (1 - SPREAD)
    for worker in late[1:]:
        pace.report(worker, 51)
    assert pace.report_every_s(late[0]) == REPORT_S


def test_who_joins_far_behind_those_that_wait_is_a_straggler_at_once():
    pace, members = a_pace(bound=8)
    for worker in members[1:]:
        pace.report(worker, 9)
    pace.remove(members[1])
    pace.admit(members[1])
    assert pace.entered_at(members[1].incarnation) == 0
    assert pace.report_every_s(members[1]) == REPORT_S


def test_who_left_and_the_view_before_are_forgotten():
    pace, members = a_pace(bound=8)
    pace.report(members[0], 9)
    assert len(pace.stragglers.take_news()) == MANY - 1
    pace.remove(members[1])
    assert 1 not in pace.stragglers
    assert 2 in pace.stragglers
    pace.begin(members)
    assert 2 not in pace.stragglers
