"""Who may act in a round, what a lost or late worker leaves, and the shares of members."""

from __future__ import annotations

from psruntime.core.rounds import rounds as module
from psruntime.core.rounds.contribution import Late
from psruntime.core.rounds.round_messages import ActionKind, Applied, Complete, Computed, CutOff, Pushed, Taken
from psruntime.core.rounds.rounds import Rounds
from psruntime.core.rounds.shares import Shares
from tests.support.transitions import check_transitions


def test_those_who_have_contributed_push_again_without_a_worker_that_has_no_batch() -> None:
    rounds = Rounds()
    rounds.begin(0, 0)
    for incarnation in (1, 2, 3):
        rounds.enter(incarnation, incarnation)
    rounds.open_next(3)
    contributed(rounds, 1, 2, 3)
    assert rounds.set_starved(3, rounds.opened) == [], "it has a gradient for this round"
    rounds.open_next(1)
    assert rounds.round == 2 and rounds.missing == [1, 2], "the next one is without it"
    contributed(rounds, 1)
    assert rounds.set_starved(2, 1) == [1], "it found no batch when it had the turn"
    again = rounds.action_of(1, chief=1)
    assert (again.kind, again.round, again.opened, again.attempt) == (ActionKind.PUSH, 2, 2, 3)
    contributed(rounds, 1)
    assert rounds.is_complete
    assert not rounds.being_applied, "whoever begins the next one closes it"
    rounds.set_starved(1, rounds.opened)
    assert rounds.being_applied, "nobody begins one, so the chief has the turn to close it, and the job waits for that"
    assert not rounds.open_next(1)
    assert rounds.action_of(3, chief=3).kind is ActionKind.APPLY, "the chief closes it, though it has no part in it"
    rounds.close(Applied(2, 3, 2))
    assert rounds.waits_for(3) == "round 3 waits for a worker to have a batch"
    rounds.set_starved(2, None)
    assert rounds.open_next(1) and rounds.missing == [2]
    contributed(rounds, 2)
    for incarnation in (1, 2, 3):
        rounds.lose(incarnation)
    assert rounds.is_complete and not rounds.being_applied, "no worker is left to apply it, so nothing waits for that"


def test_an_action_names_the_last_contribution_of_the_worker_that_counts() -> None:
    rounds = Rounds()
    rounds.begin(0, 0)
    for incarnation, index in ((11, 1), (12, 2)):
        rounds.enter(incarnation, index)
    rounds.open_next(2)

    def counted(incarnation: int) -> int:
        return rounds.action_of(incarnation, chief=2).counted

    contributed(rounds, 11, 12)
    rounds.open_next(1)
    assert (counted(11), counted(12)) == (1, 1), "the round is complete, and will be applied"
    contributed(rounds, 11)
    rounds.lose(11)
    assert rounds.cut_off(12, CutOff(2, 2)) == [1] and rounds.attempt == 3, "what worker 1 has pushed is void with it"
    rounds.enter(21, 1)  # it is back
    contributed(rounds, 12)
    rounds.open_next(1)
    assert (rounds.round, counted(21), counted(12)) == (3, 1, 3), "round 2 has closed without worker 1"
    contributed(rounds, 21, 12)
    rounds.end()
    rounds.begin(1, 4)
    rounds.enter(21, 1)
    assert counted(21) == 0, "what it has contributed to round 3 is undone"


def test_a_coordinator_names_the_rounds_of_which_it_does_not_know_what_counted() -> None:
    rounds = Rounds()
    for global_step, known_from in ((5, 5), (7, 5), (3, 3)):
        rounds.begin(global_step, 9)
        rounds.enter(11, 1)
        assert rounds.action_of(11, chief=1).known_from == known_from


def test_who_has_contributed_is_told_while_the_round_waits_for_others() -> None:
    rounds = Rounds()
    rounds.begin(0, 0)
    for incarnation in (11, 12):
        rounds.enter(incarnation, incarnation - 10)
    assert rounds.contributed == set()
    rounds.open_next(2)
    rounds.contribute(12, Pushed(rounds.round, rounds.attempt, 0, 1.0))
    assert (rounds.contributed, rounds.missing) == ({2}, [1])
    rounds.contribute(11, Pushed(rounds.round, rounds.attempt, 0, 1.0))
    assert rounds.contributed == set(), "nobody is waited for"


def computed(rounds: Rounds, *incarnations: int) -> None:
    for incarnation in incarnations:
        rounds.computed(incarnation, incarnation, Computed(rounds.round, rounds.opened, 0, 1.0))


def contributed(rounds: Rounds, *incarnations: int) -> None:
    for incarnation in incarnations:
        rounds.contribute(incarnation, Pushed(rounds.round, rounds.attempt, 0, 1.0))


def backed_up(workers: int, backup_workers: int) -> Rounds:
    """Rounds of so many workers, of which the first has opened."""
    rounds = Rounds(backup_workers=backup_workers)
    rounds.begin(0, 0)
    for incarnation in range(workers):
        rounds.enter(incarnation, incarnation)
    rounds.open_next(workers)
    return rounds


def test_a_round_does_not_wait_for_a_backup_worker_whose_gradient_is_dropped() -> None:
    rounds = backed_up(workers=3, backup_workers=1)
    assert [rounds.action_of(i, 0).kind for i in range(3)] == [ActionKind.COMPUTE] * 3
    assert rounds.waits_for(0) == "round 1 waits for 2 of worker 0, 1, 2"
    computed(rounds, 2, 0)
    assert [rounds.action_of(i, 0).kind for i in range(3)] == [ActionKind.PUSH, ActionKind.COMPUTE, ActionKind.PUSH]
    contributed(rounds, 0, 2)
    assert rounds.is_complete and rounds.open_next(1) and rounds.round == 2
    assert rounds.action_of(1, 0).closes == Complete(1, 1, 2, 2.0)
    late = Computed(1, 1, 0, 1.0)
    rounds.computed(1, 1, late)  # of the round that has closed
    assert rounds.take_late() == [Late(1, 1, late)] and not rounds.take_late()
    assert rounds.action_of(1, 0).kind is ActionKind.COMPUTE, "it takes part in the next"


def test_one_that_has_a_gradient_takes_the_place_of_a_member_that_is_lost() -> None:
    rounds = backed_up(workers=3, backup_workers=1)
    computed(rounds, 0, 1, 2)
    assert rounds.action_of(2, 0).kind is ActionKind.WAIT
    contributed(rounds, 0)
    assert rounds.lose(1) == [0] and rounds.attempt == 2
    contributed(rounds, 0)
    assert rounds.is_complete, "two live, and one of them is a backup"
    assert rounds.take_late() == []
    rounds.open_next(1)
    assert [late.worker for late in rounds.take_late()] == [2]


def test_the_gradient_of_a_late_worker_that_is_lost_is_recorded() -> None:
    rounds = backed_up(workers=3, backup_workers=1)
    computed(rounds, 0, 1, 2)
    assert rounds.lose(2) == [] and [late.worker for late in rounds.take_late()] == [2]


def test_a_round_is_closed_by_a_member_while_the_chief_is_at_work_on_a_gradient() -> None:
    rounds = backed_up(workers=3, backup_workers=1)
    computed(rounds, 1, 2)
    for incarnation in (1, 2):
        rounds.contribute(incarnation, Pushed(1, 1, 0, 1.0, apart=True))
    assert [rounds.action_of(i, 0).kind for i in range(3)] == [ActionKind.WAIT, ActionKind.APPLY, ActionKind.WAIT]
    assert rounds.waits_for(0) == "round 1 waits for worker 1 to close it"
    rounds.lose(1)
    assert rounds.action_of(2, 0).kind is ActionKind.APPLY
    assert rounds.action_of(2, 2).kind is ActionKind.APPLY, "as the chief, too"
    rounds.lose(2)
    assert rounds.action_of(0, 0).kind is ActionKind.APPLY, "no other worker is left"


def test_the_loss_of_a_backup_worker_voids_nothing() -> None:
    rounds = backed_up(workers=4, backup_workers=2)
    computed(rounds, 0)
    contributed(rounds, 0)
    assert rounds.lose(3) == [] and rounds.attempt == 1 and rounds.is_complete, (
        "three live, and two of them are backups"
    )


def test_with_more_backup_workers_than_workers_a_round_needs_one() -> None:
    rounds = backed_up(workers=2, backup_workers=5)
    computed(rounds, 1)
    contributed(rounds, 1)
    assert rounds.is_complete


def test_shares_follow_the_speeds_and_stay_with_the_round() -> None:
    rounds = Rounds(shares=Shares())
    rounds.begin(0, 0)
    for incarnation in (1, 2):
        rounds.enter(incarnation, incarnation)

    def contribute(*incarnations: int) -> None:
        for incarnation in incarnations:
            size = rounds.action_of(incarnation, 1).share or 20
            taken = Taken(0, size, 20, size / (10 * incarnation))
            rounds.contribute(incarnation, Pushed(rounds.round, rounds.attempt, 0, 1.0, taken=taken))

    seen = []
    for _ in range(6):
        rounds.open_next(2)
        seen.append([rounds.action_of(incarnation, 1).share for incarnation in (1, 2)])
        contribute(1, 2)
        assert [rounds.action_of(incarnation, 1).share for incarnation in (1, 2)] == [0, 0], "nothing to contribute"
    assert seen == [[0, 0], *[[20, 20]] * 3, *[[13, 27]] * 2]
    rounds.enter(3, 3)
    rounds.open_next(2)
    contribute(1)
    assert rounds.lose(3) == [1], "the attempt is void"
    assert [rounds.action_of(incarnation, 1).share for incarnation in (1, 2)] == [13, 27]
    contribute(1, 2)
    (first, second) = rounds._past(rounds.round).record["parts"]
    assert (first["size"], second["size"]) == (13, 27) and first["first"] == 0
    assert list(first) == ["worker", "incarnation", "batch", "first", "size", "examples", "divisor"]
    rounds.lose(2)
    for shares in ([20, 0], [20, 0]):
        rounds.open_next(2)
        assert [rounds.action_of(incarnation, 1).share for incarnation in (1, 2)] == shares, (
            "nothing is kept of the lost"
        )
        contribute(1)
        rounds.enter(2, 2)


def test_every_event_is_in_the_drawn_table_or_refused() -> None:
    check_transitions(module.__doc__, module.RoundState, module.RoundEvent, module.TRANSITIONS)
