"""The model of the rounds has no state that must not be; a broken one has; records of jobs are of its moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from psruntime.core.rounds.contribution import SectionState
from tests.simulation import round_model
from tests.simulation.round_model import Coordinator, Wrong, search
from tests.simulation.round_records import odd_record

BROKEN: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a void attempt is tried again under its number": (
        Coordinator, "voids", lambda now: now._replace(members=now.members & now.present, pushed=frozenset())
    ),
    "a contribution to an older attempt is taken": (SectionState, "voids", lambda *_: False),
    "a report of an older attempt counts": (
        Coordinator, "takes",
        lambda now, worker, _: now._replace(pushed=now.pushed | (now.members & {worker}), previous=None),
    ),
    "the loss of a member voids nothing": (
        Coordinator, "loses", lambda now, worker: now._replace(present=now.present - {worker})
    ),
}  # fmt: skip


def test_with_one_fault_no_state_is_wrong() -> None:
    assert search(workers=2, joiners=0, faults=1) > 1_000


@pytest.mark.long
@pytest.mark.parametrize(("joiners", "faults"), [(1, 1), (0, 2)])
def test_with_a_joiner_or_two_faults_no_state_is_wrong(joiners: int, faults: int) -> None:
    assert search(workers=2, joiners=joiners, faults=faults) > 10_000


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_rule_is_found(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, wrong = BROKEN[broken]
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(Wrong):
        search(workers=2, joiners=0, faults=1)


def test_a_contribution_that_is_cut_off_and_sent_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of making the attempt void."""
    right = round_model._faults

    def sent_again(state: round_model.State) -> Any:
        for after in right(state):
            same = state.coordinator.present == after.coordinator.present
            yield after._replace(coordinator=state.coordinator) if same else after

    monkeypatch.setattr(round_model, "_faults", sent_again)
    with pytest.raises(Wrong, match="is applied with"):
        search(workers=2, joiners=0, faults=1)


def _round(number: int, attempt: int, *workers: int) -> dict[str, Any]:
    return {"record": "round", "round": number, "attempt": attempt, "parts": [{"worker": w} for w in workers]}


PREPARED = {"record": "prepared", "global_step": 0}
VOID = {"record": "void", "round": 2, "attempt": 2, "lost": 1, "voided": [0]}


def test_a_record_is_of_the_models_moves() -> None:
    assert odd_record([PREPARED, _round(1, 1, 0, 1), VOID, _round(2, 3, 0), _round(3, 4, 0, 1)], 2) is None
    assert odd_record([PREPARED, VOID | {"round": 1, "attempt": 1}, _round(1, 2, 0)], 2) is None
    assert odd_record([PREPARED, _round(1, 5, 0), PREPARED | {"global_step": 1}, _round(2, 9, 0)], 2) is None


@pytest.mark.parametrize(
    "odd",
    [
        [_round(1, 1, 0), _round(3, 2, 0)],  # a round is missing
        [_round(1, 1, 0), _round(2, 3, 0)],  # an attempt is, without a void one
        [_round(1, 1, 0, 1), VOID, _round(2, 3, 0, 0)],
        [_round(1, 1, 0, 1), VOID, _round(2, 2, 0)],  # of the void attempt
        [_round(1, 1, 0, 1), VOID | {"voided": [1]}],  # who is lost, has not contributed
    ],
    ids=range(5),
)
def test_what_is_none_of_them_is_found(odd: list[dict[str, Any]]) -> None:
    assert odd_record([PREPARED, *odd], 2) is odd[-1]
