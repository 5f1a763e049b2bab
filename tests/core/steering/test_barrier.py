"""The barrier by itself: its moves, its hold, what it waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psruntime.core.steering import barrier as module
from psruntime.core.steering.barrier import Barrier, BarrierState, Decision, Look
from psruntime.core.steering.commands import Overrides
from tests.support.transitions import check_transitions

START = Overrides(bound=4)
READY = Look(True, written=7)


def changed(**change: object) -> Barrier:
    """A barrier at which a change begins."""
    barrier = Barrier(START)
    barrier.begin(replace(START, **change))  # type: ignore[arg-type]
    return barrier


def test_a_change_goes_through_hold_and_apply() -> None:
    barrier = changed(bound=2)
    assert (barrier.state, barrier.pause_epoch, barrier.for_ps) == (BarrierState.PAUSE, 1, START)
    assert barrier.decide(replace(READY, stepping="waits for worker 1")) == Decision("", "waits for worker 1")
    assert barrier.decide(READY) == Decision("apply")
    barrier.apply(8, 30)
    assert barrier.for_ps == Overrides(1, 30, 2) and barrier.in_force == START
    assert barrier.decide(replace(READY, unwritten="waits for ps 0")) == Decision("", "waits for ps 0")
    assert barrier.decide(replace(READY, written=8)) == Decision("release")
    barrier.release(31)
    assert barrier.in_force == barrier.for_ps == Overrides(1, 31, 2)
    assert (barrier.state, barrier.pause_epoch, barrier.target) == (BarrierState.OPEN, 0, None)


def test_nobody_holds_while_workers_build_the_graph_of_the_steps_that_come() -> None:
    barrier = Barrier(Overrides(mode="async"))
    barrier.begin(Overrides(mode="sync"), builds=True)
    assert (barrier.state, barrier.pause_epoch, barrier.to_build) == (BarrierState.BUILD, 0, "sync")
    late = replace(READY, unbuilt="waits for worker 1", stepping="steps go on")
    assert barrier.decide(late) == Decision("", "waits for worker 1")
    assert barrier.decide(replace(late, unbuilt="")) == Decision("halt")
    barrier.halt()
    assert (barrier.state, barrier.pause_epoch, barrier.to_build) == (BarrierState.PAUSE, 1, "")


def test_nothing_moves_while_nobody_trains() -> None:
    barrier = changed(bound=2)
    assert barrier.decide(Look(False, "waiting for ps 1")) == Decision("", "waiting for ps 1")
    barrier.apply(8, 30)
    assert barrier.decide(Look(False, "waiting for ps 1", written=9)) == Decision("", "waiting for ps 1")


def test_a_pause_keeps_its_hold_over_other_changes_and_ends_with_the_resume() -> None:
    barrier = changed(paused=True)
    barrier.apply(8, 30)
    barrier.release(30)
    assert barrier.pause_epoch == 1
    barrier.begin(replace(barrier.in_force, learning_rate_scale=0.5))
    barrier.apply(9, 30)
    barrier.release(30)
    assert barrier.pause_epoch == 1 and barrier.in_force == Overrides(2, 30, 4, 0.5, True)
    barrier.begin(replace(barrier.in_force, paused=False))
    assert barrier.pause_epoch == 1, "until every ps has written it"
    barrier.apply(10, 30)
    barrier.release(30)
    assert barrier.pause_epoch == 0
    barrier.begin(replace(barrier.in_force, bound=9))
    assert barrier.pause_epoch == 2, "a number is not used twice"


def test_what_was_given_up_leaves_no_trace() -> None:
    barrier = changed(bound=2)
    barrier.give_up()
    assert (barrier.in_force, barrier.for_ps, barrier.pause_epoch, barrier.state) == (
        START,
        START,
        0,
        BarrierState.OPEN,
    )


def test_the_settings_of_an_earlier_coordinator_are_taken_if_they_are_newer() -> None:
    barrier = Barrier(START)
    barrier.restore(Overrides(0, 0, None, 3.0))
    assert barrier.in_force == START
    known = Overrides(3, 50, 2, 0.1, paused=True)
    barrier.restore(known)
    barrier.restore(Overrides(2, 40, 8))
    assert barrier.in_force == known and barrier.pause_epoch == 1


@pytest.mark.parametrize(
    ("state", "moves"),
    [
        (BarrierState.OPEN, {"begin", "restore", "note"}),
        (BarrierState.BUILD, {"halt", "give_up"}),
        (BarrierState.PAUSE, {"apply", "give_up"}),
        (BarrierState.APPLY, {"release"}),
    ],
)
def test_an_illegal_move_raises_and_changes_nothing(state: BarrierState, moves: set[str]) -> None:
    barrier = Barrier(START)
    if state is not BarrierState.OPEN:
        barrier.begin(replace(START, mode="sync"), builds=state is BarrierState.BUILD)
    if state is BarrierState.APPLY:
        barrier.apply(8, 30)
    before = vars(barrier).copy()
    arguments = {
        "begin": (START,),
        "restore": (START,),
        "halt": (),
        "apply": (1, 1),
        "give_up": (),
        "release": (1,),
        "note": (START, 1),
    }
    for move in arguments.keys() - moves:
        with pytest.raises(ValueError, match=f"illegal event {move.upper()} in BarrierState {state.name}"):
            getattr(barrier, move)(*arguments[move])
        assert vars(barrier) == before


def test_every_move_is_in_the_drawn_table_or_refused() -> None:
    check_transitions(module.__doc__, BarrierState, module.Move, module.TRANSITIONS)
