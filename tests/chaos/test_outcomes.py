"""The table of outcomes is complete, and says nothing that cannot be."""

from __future__ import annotations

from itertools import product

from tests.chaos.outcomes import FAULTS, MODES, VICTIMS, read_table


def test_every_cell_has_one_outcome() -> None:
    assert list(read_table()) == [" - ".join(cell) for cell in product(VICTIMS, FAULTS, MODES)]


def test_only_a_lost_ps_ends_the_job_and_only_a_ps_that_was_replaced_costs_steps() -> None:
    for outcome in read_table().values():
        is_ps = outcome.victim.startswith("ps")
        assert (outcome.end != "DONE") == (is_ps and outcome.fault == "lost"), outcome
        assert (outcome.steps == "rolled back") == (is_ps and outcome.fault == "kill, restart"), outcome


def test_who_is_killed_ends_by_it_and_nobody_else_fails_unless_the_job_does() -> None:
    for outcome in read_table().values():
        victim, others = outcome.codes
        assert victim == (0 if outcome.fault == "pause" else -9), outcome
        assert (others == 0) == (outcome.end == "DONE"), outcome
