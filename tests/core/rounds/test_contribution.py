"""The rule of contributions, cell by cell; that coordinator, ps and workers follow it, their own tests show."""

from __future__ import annotations

import itertools

import pytest

from psruntime.core.rounds.contribution import (
    BucketOutcome,
    Kept,
    SectionState,
    Use,
    has_closed,
    hold_same_rounds,
    is_late,
    is_of,
    torn,
    use_of,
)
from psruntime.core.rounds.round_messages import Action, ActionKind, Applied, Broken, Complete, Computed, CutOff, Pushed


def test_each_attempt_at_a_bucket_begins_a_sum_is_added_or_is_void() -> None:
    summed = SectionState(attempt=7, count=1, intent=6, applied=6)
    applied = SectionState(attempt=7, count=2, intent=7, applied=7)
    cells = {
        (name, n): (bool(b.voids(n)), bool(b.begins(n)))
        for name, b in (("summed", summed), ("applied", applied))
        for n in (6, 7, 8)
    }
    assert cells == {
        ("summed", 6): (True, False), ("summed", 7): (False, False), ("summed", 8): (False, True),
        ("applied", 6): (True, False), ("applied", 7): (True, False), ("applied", 8): (False, True),
    }  # fmt: skip


def test_an_attempt_is_applied_once_and_only_with_all_its_members() -> None:
    summed = SectionState(attempt=7, count=2, intent=6, applied=6)
    for attempt, members in itertools.product((6, 7, 8), (1, 2, 3)):
        assert summed.is_complete(attempt, members) == ((attempt, members) == (7, 2))
    assert not summed.began(7) and summed._replace(intent=7).began(7)


def test_torn_names_both_kinds() -> None:
    closes = Complete(round=4, attempt=7, members=2, examples=8.0)
    complete, applied, cut_off = [7, 2, 6, 6], [7, 2, 7, 7], [7, 2, 7, 6]
    lacking, older, sealed = [7, 1, 6, 6], [6, 2, 6, 6], [7, 0, 6, 6]
    assert torn([complete, complete], closes) is None
    assert torn([applied, complete], closes) is None
    assert torn([applied, applied], closes) is None
    assert torn([applied, cut_off, lacking], closes) == "1 sections were cut off in their update"
    assert torn([applied, lacking, older, sealed], closes) == "3 sections lack contributions"


def test_buckets_hold_the_same_rounds_if_none_is_ahead_and_none_is_torn() -> None:
    whole, ahead, is_torn = SectionState(9, 1, 7, 7), SectionState(8, 2, 8, 8), SectionState(7, 2, 8, 7)
    assert hold_same_rounds([]) and hold_same_rounds([whole, whole])
    assert not hold_same_rounds([whole, ahead]) and not hold_same_rounds([is_torn])


def test_a_step_has_closed_the_round_before_if_every_bucket_had_when_it_was_pulled() -> None:
    closes = Complete(3, 7, 2, 8.0)
    assert has_closed([BucketOutcome(8, 7, 0), BucketOutcome(8, 9, 0)], closes)
    assert not has_closed([BucketOutcome(8, 7, 0), BucketOutcome(8, 6, 0)], closes)


@pytest.mark.parametrize("report", [Pushed(3, 7, 0, 1.0), Applied(3, 7, 3), Broken(3, 7, "why"), CutOff(3, 7)])
def test_a_report_is_of_one_attempt_at_one_round(report: Pushed | Applied | Broken | CutOff) -> None:
    assert [pair for pair in itertools.product((2, 3), (6, 7, 8)) if is_of(report, *pair)] == [(3, 7)]


def test_a_gradient_is_late_for_every_round_but_its_own() -> None:
    computed = Computed(3, 7, 0, 1.0)
    assert [pair for pair in itertools.product((3, 4), (7, 8)) if not is_late(computed, *pair)] == [(3, 7)]


ANOTHER, BEHIND = 5, 2  # a first attempt, and a round
UNCOUNTED, COUNTED = 7, 8  # attempts
PUSHED, EITHER = (0, UNCOUNTED, COUNTED), (False, True)
USES = {  # of the view; opened at; round; attempt that took it; whether rounds close without some
    **{(True, 4, number, pushed, without): Use.AGAIN
       for number in (BEHIND, 3) for pushed in PUSHED for without in EITHER},
    **{(True, ANOTHER, number, pushed, without): Use.SPENT if pushed else Use.LATE
       for number in (BEHIND, 3) for pushed in PUSHED for without in EITHER},
    **{(False, opened, 3, pushed, without): Use.ANEW
       for opened in (4, ANOTHER) for pushed in PUSHED for without in EITHER},
    **{(False, opened, BEHIND, COUNTED, without): Use.SPENT for opened in (4, ANOTHER) for without in EITHER},
    **{(False, opened, BEHIND, pushed, True): Use.UNUSED for opened in (4, ANOTHER) for pushed in (0, UNCOUNTED)},
    **{(False, opened, BEHIND, pushed, False): Use.ANEW for opened in (4, ANOTHER) for pushed in (0, UNCOUNTED)},
}  # fmt: skip


def test_every_kept_gradient_has_one_use() -> None:
    action = Action(ActionKind.PUSH, round=3, attempt=9, opened=4, counted=COUNTED, known_from=1)
    cells = set(itertools.product(EITHER, (4, ANOTHER), (BEHIND, 3), PUSHED, EITHER))
    assert set(USES) == cells
    for of_view, opened, number, pushed, without in cells:
        kept = Kept(round=number, opened=opened, pushed=pushed)
        assert use_of(kept, of_view, action, without) is USES[of_view, opened, number, pushed, without]
    assert use_of(None, False, action, True) is Use.SPENT


def test_of_rounds_before_the_coordinator_began_a_contribution_that_was_accepted_counts() -> None:
    action = Action(ActionKind.PUSH, round=3, attempt=9, opened=4, counted=COUNTED, known_from=BEHIND)
    assert use_of(Kept(round=BEHIND, opened=4, pushed=UNCOUNTED), False, action, False) is Use.SPENT
    assert use_of(Kept(round=BEHIND, opened=4), False, action, False) is Use.ANEW
