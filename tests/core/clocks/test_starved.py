"""Workers that rest, since they have no batch: nobody waits for them, and they come back within the bound."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from psruntime.config import JobConfig
from psruntime.core.clocks.pace import Pace
from psruntime.core.members.membership import JudgedClock, Member
from tests.core.clocks.test_level import member
from tests.support.selection import examples

WORKERS = 3


@dataclass
class Stepper:
    """A worker that hears every answer at once.  pushed_before: updates of others when it pulled; None: no step."""

    me: Member
    base: int = 0
    steps: int = 0
    starve_count: int = 0
    pushed_before: int | None = None
    words: list[tuple[int, int]] = field(default_factory=list)  # (steps, number) of what it said of its rests

    @property
    def is_starved(self) -> bool:
        return self.starve_count % 2 == 1

    @property
    def clock(self) -> int:
        return self.base + self.steps


@settings(max_examples=examples(300), deadline=None)
@given(
    st.integers(0, 2),
    st.lists(
        st.tuples(st.integers(0, WORKERS - 1), st.sampled_from(["step", "step", "step", "rest", "late", "bound"])),
        max_size=80,
    ),
)
def test_no_step_is_too_far_ahead_and_no_update_too_stale(bound: int, acts: list[tuple[int, str]]) -> None:
    pace = Pace(JobConfig(mode="bounded", bound=bound, min_workers=WORKERS), JudgedClock(0.0))
    steppers = [Stepper(member(index)) for index in range(WORKERS)]
    pace.begin([stepper.me for stepper in steppers])
    limit = pace.max_staleness(WORKERS)
    assert limit is not None
    pushed, floor = 0, 0
    for who, act in acts:
        stepper = steppers[who]
        if act == "bound" and all(other.pushed_before is None for other in steppers):
            bound = who
            pace.rebound(bound)
            limit = pace.max_staleness(WORKERS)
            assert limit is not None
        elif act == "late" and stepper.words:
            pace.set_starved(stepper.me, *stepper.words[0])  # a heartbeat that was overtaken, or is repeated
        elif act == "rest" and stepper.pushed_before is None:
            stepper.starve_count += 1
            stepper.words.append((stepper.steps, stepper.starve_count))
            before = stepper.clock
            pace.set_starved(stepper.me, stepper.steps, stepper.starve_count)
            stepper.base = pace.entered_at(stepper.me.incarnation)
            assert stepper.clock >= before and (stepper.is_starved or stepper.clock >= pace.floor)
        elif act == "step" and stepper.pushed_before is not None:
            assert pushed - stepper.pushed_before <= limit, "it would be refused as stale"
            pushed, stepper.pushed_before, stepper.steps = pushed + 1, None, stepper.steps + 1
            pace.report(stepper.me, stepper.steps)
        elif act == "step" and not stepper.is_starved and not pace.waits_for(stepper.me):
            slowest = min(other.clock for other in steppers if not other.is_starved)
            assert stepper.clock - slowest <= bound
            stepper.pushed_before = pushed
        assert pace.floor >= floor, "it never falls"
        floor = pace.floor
        free = [s for s in steppers if not s.is_starved and (s.pushed_before is not None or not pace.waits_for(s.me))]
        assert free or all(s.is_starved for s in steppers), "all wait for each other"


def test_nobody_waits_for_who_rests_and_it_comes_back_at_the_floor() -> None:
    fast, slow = workers = [member(index) for index in range(2)]
    pace = Pace(JobConfig(mode="bounded", bound=1, min_workers=2), JudgedClock(0.0))
    pace.begin(workers)
    pace.report(fast, 2)
    assert pace.waits_for(fast)
    pace.set_starved(slow, 0, 1)
    assert not pace.waits_for(fast) and pace.entered_at(slow.incarnation) == 0
    pace.report(fast, 9)
    pace.set_starved(slow, 0, 2)
    assert pace.entered_at(slow.incarnation) == 9 and pace.clocks.clocks == {0: 9, 1: 9}
    pace.set_starved(slow, 0, 1)
    assert pace.clocks.clocks == {0: 9, 1: 9}, "that was overtaken"
    pace.set_starved(slow, 0, 3)
    pace.remove(slow)
    pace.set_starved(slow, 0, 4)
    assert pace.clocks.clocks == {0: 9}, "it is gone"


def test_where_all_rest_the_floor_is_at_the_furthest() -> None:
    """A smaller bound may keep one of them from asking for a batch, and nobody else would raise the floor."""
    one, other = workers = [member(index) for index in range(2)]
    pace = Pace(JobConfig(mode="bounded", bound=8, min_workers=2), JudgedClock(0.0))
    pace.begin(workers)
    pace.report(one, 1)
    pace.report(other, 6)
    pace.set_starved(other, 6, 1)
    pace.rebound(1)
    pace.report(one, 3)
    assert pace.floor == 3
    pace.set_starved(one, 3, 1)
    assert pace.floor == 6
    pace.set_starved(one, 3, 2)
    assert pace.clocks.clocks == {0: 6} and not pace.waits_for(one)
