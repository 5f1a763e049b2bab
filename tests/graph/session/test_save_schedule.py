"""When a checkpoint is due: steps, seconds, deltas, failures, sessions."""

from __future__ import annotations

import math

import pytest

from psruntime.graph.session.save_schedule import FAILED_S, SaveSchedule


def due(schedule: SaveSchedule, global_step: int, now_s: float = 0.0, is_wanted: bool = False) -> bool:
    return schedule.is_due(global_step, is_wanted, now_s)


@pytest.mark.parametrize(
    ("delta_every", "save_secs", "global_step", "now_s", "is_wanted", "is_due"),
    [
        (0, math.inf, 99, 0.0, False, False),
        (0, math.inf, 100, 0.0, False, True),
        (10, math.inf, 9, 0.0, False, False),
        (10, math.inf, 10, 0.0, False, True),
        (0, 30.0, 1, 29.0, False, False),
        (0, 30.0, 1, 30.0, False, True),
        (0, 30.0, 0, 30.0, False, False),  # without a step since the latest
        (0, math.inf, 1, 0.0, True, True),
        (0, math.inf, 0, 0.0, True, False),
    ],
)
def test_the_first_is_due_by_steps_by_time_or_when_wanted(
    delta_every: int, save_secs: float, global_step: int, now_s: float, is_wanted: bool, is_due: bool
) -> None:
    schedule = SaveSchedule(100, delta_every, save_secs, now_s=0.0)
    assert due(schedule, global_step, now_s, is_wanted) is is_due


def test_a_whole_one_is_made_once_its_steps_are_over_and_deltas_between() -> None:
    schedule = SaveSchedule(100, 30, math.inf, now_s=0.0)
    made = [(step, schedule.tried(step, 0.0)) for step in range(1, 231) if due(schedule, step)]
    assert made == [(30, False), (60, False), (90, False), (100, True), (130, False), (160, False), (190, False),
                    (200, True), (230, False)]  # fmt: skip


@pytest.mark.parametrize(("tried_at", "is_whole", "again_at"), [(100, True, 110), (30, False, 33)])
def test_after_a_failure_the_next_is_due_a_tenth_of_the_steps_later(
    tried_at: int, is_whole: bool, again_at: int
) -> None:
    schedule = SaveSchedule(100, 30, math.inf, now_s=0.0)
    assert schedule.tried(tried_at, 0.0) is is_whole
    schedule.failed(is_whole, now_s=1.0)
    assert next(step for step in range(tried_at, tried_at + 20) if due(schedule, step, 1.0)) == again_at
    assert not due(schedule, tried_at + 1, 1.0 + FAILED_S - 0.1, is_wanted=True)
    assert due(schedule, tried_at + 1, 1.0 + FAILED_S, is_wanted=True)
    assert schedule.tried(again_at + 100, 9.0), "the failed one counts as not made"


@pytest.mark.parametrize(
    ("newest", "newest_whole", "first_due"), [(50, 20, 80), (50, 50, 80), (None, None, 90), (99, 99, 90)]
)
def test_a_session_counts_on_from_the_checkpoints_in_the_folder(
    newest: int | None, newest_whole: int | None, first_due: int
) -> None:
    schedule = SaveSchedule(100, 30, math.inf, now_s=0.0)
    schedule.entered(60, newest, newest_whole)
    assert next(step for step in range(60, 200) if due(schedule, step)) == first_due
