"""What became of an update as a whole."""

from __future__ import annotations

import pytest

from psruntime.core.accounting.accounts import (
    APPLIED,
    CAUSES,
    FENCED,
    NOT_FINITE,
    REPEATED,
    STALE,
    UpdateOutcome,
    contribution,
    outcome_of,
    too_late,
    word_of,
)
from psruntime.core.members.view import PsEntry, View

RESTORED = 1 << 32  # how much a version leaps by a restore


def weight(staleness: int) -> float:
    return 1 / (1 + staleness)


@pytest.mark.parametrize(
    ("buckets", "outcome"),
    [
        ([(APPLIED, 2), (APPLIED, 5)], UpdateOutcome("applied", 2, 0, 5, 1 / 6)),
        ([(APPLIED, 0)], UpdateOutcome("applied", 1, 0, 0, 1.0)),
        ([(APPLIED, 1), (STALE, 9)], UpdateOutcome("stale", 1, 1, 1, 1 / 2)),
        ([(STALE, 4), (STALE, 7)], UpdateOutcome("stale", 0, 2, 7, None)),
        ([(STALE, RESTORED + 3)], UpdateOutcome("stale", 0, 1, None, None)),
        ([(STALE, -2), (STALE, 6)], UpdateOutcome("stale", 0, 2, 6, None)),
        ([(FENCED, 0), (FENCED, 1), (REPEATED, 1)], UpdateOutcome("fenced", 0, 3, None, None)),
        ([(NOT_FINITE, 3), (NOT_FINITE, 2)], UpdateOutcome("not_finite", 0, 2, None, None)),
    ],
)
def test_the_outcome_of_all_buckets(buckets: list[tuple[int, int]], outcome: UpdateOutcome) -> None:
    assert outcome_of(buckets, weight) == outcome


def test_every_cause_has_its_name() -> None:
    for name, column in CAUSES.items():
        assert outcome_of([(column, 1)], weight).name == name


def test_what_a_round_makes_of_a_gradient() -> None:
    assert contribution(3, counts=True) == UpdateOutcome("contributed", 3, 0, 0, 1.0)
    assert contribution(3, counts=False) == UpdateOutcome("not_finite", 0, 3, None, None)
    assert too_late(3) == UpdateOutcome("late", 0, 3, None, None)


def test_the_word_of_a_view_tells_processes_apart_and_gives_none_away() -> None:
    views = [View(number, (PsEntry(0, "a:1", incarnation),)) for number in (1, 2) for incarnation in (77, 78)]
    words = [word_of(view) for view in views]
    assert len(set(words)) == 4
    assert words[0] == word_of(View(1, (PsEntry(0, "elsewhere:9", 77),)))
    assert all("77" not in word and "78" not in word for word in (words[0][2:], words[1][2:]))
