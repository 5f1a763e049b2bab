"""Judged time runs with the real one, but for pauses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psruntime.core.members.membership import JudgedClock, Since

GAP_S = 5.0


@given(st.lists(st.floats(-2 * GAP_S, 3 * GAP_S)))
def test_no_time_goes_back_and_judged_time_runs_but_for_pauses(steps: list[float]) -> None:
    clock, judged_s, real_s = JudgedClock(1000.0, GAP_S), 1000.0, 1000.0
    for step_s in steps:
        before, at_s = (clock.now_s, clock.real_s), clock.real_s + step_s
        clock.advance(at_s)
        gap_s = max(0.0, at_s - before[1])
        judged_s, real_s = judged_s + (gap_s if gap_s <= GAP_S else 0.0), max(real_s, at_s)
        assert (clock.now_s, clock.real_s) >= before
        assert clock.now_s == pytest.approx(judged_s) and clock.real_s == real_s


def test_a_value_is_the_same_since_it_was_set() -> None:
    clock = JudgedClock(10.0, GAP_S)
    since: Since[str] = Since(clock)
    clock.advance(12.0)
    assert (since.what, since.for_s) == (None, 0.0)
    for what, now_s, for_s in [("a", 13.0, 0.0), ("a", 14.0, 1.0), ("a", 114.0, 1.0), ("b", 115.0, 0.0)]:
        clock.advance(now_s)
        since.update(what)
        assert since.for_s == for_s
    clock.advance(116.0)
    since.begin("b")
    assert since.for_s == 0.0
