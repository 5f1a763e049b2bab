"""What follows from a phase, and the columns of a dynamic table's counts: each is defined once."""

from __future__ import annotations

from dataclasses import fields, replace

from psruntime.core.members.messages import ROW_COLUMNS, Assignment, RowCounts
from psruntime.core.members.view import MOVES, Phase, View


def test_what_follows_from_each_phase() -> None:
    assert set(MOVES) == set(Phase)
    assert {phase for phase in Phase if phase.over} == {Phase.DONE, Phase.FAILED, Phase.STOPPED}
    assert {phase for phase in Phase if phase.may_train} == {Phase.FORMING, Phase.PREPARING, Phase.TRAINING}
    assert all(phase.may_train or phase.over for phase in Phase if phase is not Phase.DRAINING)


def test_each_count_of_a_dynamic_table_is_shown() -> None:
    counts = RowCounts("ids", 9, 1, 5, 2, 1, 1)
    assert ("ids", *(field.name for field in fields(RowCounts) if field.name != "table")) == ROW_COLUMNS
    assert counts.shown == {"ids": 3, "rows": 9, "found": 1, "admitted": 5, "refused": 2, "expired": 1, "evicted": 1}


def test_a_later_session_of_a_view_has_the_same_assignment() -> None:
    """Though a checkpoint was written between the two: what a worker pushed in the first one counts."""
    one = Assignment(View(1, ()), 5, prepare=False)
    assert replace(one, restore=True, clock=4, saved_step=8, seen_step=9) == one
    assert replace(one, incarnation=6) != one != replace(one, view=View(2, ()))
