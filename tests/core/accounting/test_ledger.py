"""The columns of the ledger: each is defined once, and the sums, the facts and the fate of a batch follow."""

from __future__ import annotations

from dataclasses import fields

import pytest

from psruntime.core.accounting.accounts import (
    CAUSES,
    LEDGER_SIZE,
    Accounts,
    Column,
    Term,
    are_final,
    is_balanced,
    ledger_facts,
    outcome_of,
    stats_of,
    terms_of,
)
from psruntime.core.members.messages import PsStats


def row_with(*columns: Column) -> list[int]:
    return [int(number in columns) for number in range(LEDGER_SIZE)]


def test_the_places_in_a_row_that_checkpoints_have_stay() -> None:
    assert [column.word for column in sorted(Column)] == [
        "received", "applied", "stale", "fenced", "repeated", "not_finite", "void", "rolled_back", "pending",
        "max_staleness", "down_weighted",
    ]  # fmt: skip


def test_a_cause_that_does_not_say_whether_it_is_final_is_refused() -> None:
    with pytest.raises(TypeError, match="column 11 is a cause of refusal, and says not whether it is final"):
        getattr(Column, "__new_member__")(Column, 11, Term.CAUSE)  # noqa: B009 - Enum has it of the class


@pytest.mark.parametrize("column", Column)
def test_each_column_is_in_the_sums_the_facts_and_the_balance(column: Column) -> None:
    parts = [Column.RECEIVED, Column.APPLIED] if column.part is Term.SHARE else [Column.RECEIVED]
    row = row_with(column, *parts)
    stats = stats_of([row, row])
    expected = 1 if column.part is Term.PEAK else 2
    assert {**stats.dropped, **vars(stats)}[column.word] == expected
    accounts = Accounts()
    for ps in range(2):
        accounts.update(ps, stats_of([row]))
    assert accounts.totals().stats == stats
    assert ledger_facts(stats).get(column.word, 1) == expected
    is_term = column.part in (Term.TERM, Term.CAUSE)
    assert sum(terms_of(stats).values()) == (2 if is_term or column.part is Term.SHARE else 0)
    assert is_balanced(row) == accounts.totals().balanced == (is_term or column.part is Term.SHARE)
    if column.part is not Term.WHOLE:
        without = row_with(*(each for each in parts if each is not Column.RECEIVED), column)
        assert is_balanced(without) == (column.part is Term.PEAK), "what has not arrived cannot have become anything"


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_of_refusal_has_its_word_and_says_what_becomes_of_the_batch(cause: str) -> None:
    column = CAUSES[cause]
    assert outcome_of([(column, 0)], lambda _: 1.0).name == cause == column.word
    assert are_final([Column.APPLIED, column]) == are_final([Column.PENDING, column]) == column.is_final


def test_a_batch_is_done_with_if_another_push_of_it_would_change_nothing() -> None:
    final = {column.word for column in Column if are_final([column])}
    assert final == {"applied", "pending", "repeated", "not_finite"}


def test_stats_of_a_ps_without_buckets_have_every_cause_and_no_count() -> None:
    stats = stats_of([])
    assert stats == PsStats(dropped=dict.fromkeys(CAUSES, 0))
    assert {field.name for field in fields(PsStats)} >= {c.word for c in Column} - set(CAUSES)


def test_facts_are_in_the_order_of_the_sum_and_keep_a_cause_of_another_version() -> None:
    facts = ledger_facts(PsStats(received=3, applied=1, dropped={"odd": 1, "stale": 1}))
    assert list(facts) == ["received", "applied", "down_weighted", "stale", "rolled_back", "pending", "odd"]
