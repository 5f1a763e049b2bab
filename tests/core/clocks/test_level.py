"""All workers stand at one clock when a bound begins within a view."""

from __future__ import annotations

from psruntime.config import JobConfig
from psruntime.core.clocks.pace import Pace
from psruntime.core.members.membership import JudgedClock, Member, Role


def member(index: int) -> Member:
    return Member(Role.WORKER, index, f"10.0.0.1:{index}", "10.0.0.1:9", f"join {index}", 100 + index, 0.0, 0.0, 9.0)


def test_what_was_done_without_a_bound_is_no_lead() -> None:
    fast, slow, stopped = workers = [member(index) for index in range(3)]
    pace = Pace(JobConfig(min_workers=3), JudgedClock(0.0))
    pace.begin(workers)
    for worker, steps in ((fast, 50), (slow, 3), (stopped, 7)):
        pace.report(worker, steps, stopped=worker is stopped)
    pace.rebound(2)
    pace.level(workers)
    assert pace.floor == 50 and pace.max_lead == 0
    assert [pace.entered_at(worker.incarnation) for worker in workers] == [0, 47, 0], "whoever has stopped has no clock"
    pace.report(slow, 3)
    assert pace.clocks.clocks == {0: 50, 1: 50}, "a report from before changes nothing"
    pace.report(fast, 53)
    assert pace.waits_for(fast) == "3 steps ahead of worker 1, bound 2"
    pace.report(slow, 4)
    assert not pace.waits_for(fast) and pace.floor == 51
    late = member(3)
    pace.admit(late)
    assert pace.entered_at(late.incarnation) == 51
