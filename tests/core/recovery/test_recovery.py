"""What the chief does with what the ps hold."""

from __future__ import annotations

import itertools

import pytest

from psruntime.core.accounting.accounts import (
    APPLIED,
    EMPTY,
    LEDGER_SIZE,
    PENDING,
    RECEIVED,
    VOID,
    brought_back,
    is_balanced,
)
from psruntime.core.accounting.saved_state import BucketCounters, SavedState
from psruntime.core.recovery import recovery
from psruntime.core.recovery.recovery import Contents, decide
from tests.support.transitions import check_transitions

F, B, P = Contents.FRESH, Contents.BEGUN, Contents.PREPARED


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("same_rounds", [False, True])
def test_whose_variables_are_replaced(partial: bool, restore: bool, same_rounds: bool) -> None:
    for contents in itertools.product((F, B, P), repeat=3):
        found = decide(contents, partial, restore, same_rounds)
        lost = {ps for ps, content in enumerate(contents) if content is not P}
        assert lost <= found.ps, "what is not there is never adopted"
        assert bool(found.reason) == bool(found.ps)
        if restore or not same_rounds or len(lost) == 3:
            assert found.ps == {0, 1, 2}
        elif not lost:
            assert not found.ps, "live variables are adopted"
        else:
            assert found.ps == (lost if partial else {0, 1, 2})


@pytest.mark.parametrize("partial", [False, True])
def test_a_ps_that_has_no_variables_loses_none(partial: bool) -> None:
    for contents in itertools.product((F, B, P), repeat=3):
        found = decide(contents, partial, False, True, empty={1})
        absent = {ps for ps, content in enumerate(contents) if content is not P}
        assert bool(found.ps) == bool(found.reason) == bool(absent - {1})
        if absent - {1}:
            assert found.ps == (absent if partial else {0, 1, 2}), "an empty one is made ready with the others"
        assert "1" not in found.reason
    assert decide([F, P], partial, False, True, empty={1}).reason == "ps 0 lost its variables"
    assert decide([F, B], partial, False, True, empty={1}).reason == "no ps holds anything"
    assert decide([P, F], partial, True, True, empty={1}).ps == {0, 1}, "what the coordinator wants is restored"


def test_a_reason_names_the_ps() -> None:
    assert decide([P, F, P, B], False, False, True).reason == "ps 1, 3 lost its variables"
    assert decide([F, F], False, False, True).reason == "no ps holds anything"
    assert decide([F, B], False, False, True).reason == "a preparation was cut off"
    assert decide([P, P], True, True, True).reason == "a round was torn"


def test_the_drawn_table_is_the_one_that_decides() -> None:
    check_transitions(recovery.__doc__, recovery.Together, recovery.Consistency, recovery.WAYS, recovery.Way)


def row(**counts: int) -> tuple[int, ...]:
    columns = {"received": RECEIVED, "applied": APPLIED, "pending": PENDING, "void": VOID}
    made = list(EMPTY)
    for name, count in counts.items():
        made[columns[name]] = count
    return tuple(made)


def test_what_was_pending_is_void_when_a_ledger_is_brought_back() -> None:
    back = brought_back(row(received=9, applied=5, pending=3, void=1))
    assert tuple(back) == row(received=9, applied=5, void=4)
    assert is_balanced(back)


def test_a_state_comes_back_from_its_text() -> None:
    state = SavedState(
        7,
        {
            "w": BucketCounters(2**33 + 7, row(received=7, applied=7), 0),
            "b/0": BucketCounters(5, row(received=5, applied=5), 1),
        },
        {0: {3: (5, 6)}, 1: {}},
    )
    assert state.spread == 2
    assert SavedState.of_text(state.text()) == state
    assert SavedState(3).spread == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"global_step": 1, "buckets": [], "counts": {}}',
        '{"global_step": 1, "buckets": {"w": {"version": 1}}, "counts": {}}',
        '{"global_step": 1, "buckets": {"w": {"version": 1, "ledger": [1], "ps": 0}}, "counts": {}}',
        SavedState(1, {"w": BucketCounters(1, (1,) * LEDGER_SIZE, 0)}).text(),
        '{"global_step": 1, "buckets": {}, "counts": {"0": {"1": [1]}}}',
        '{"global_step": "many", "buckets": {}, "counts": {}}',
    ],
)  # fmt: skip
def test_a_text_that_is_no_state_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        SavedState.of_text(text)
