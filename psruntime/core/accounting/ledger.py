"""The ledger of a bucket: what became of every push that arrived there.

A row of counters, kept on the bucket's ps under its mutex:
received = applied (of which down-weighted) + the causes of a drop + rolled back + pending.
Applied are the updates that the bucket holds; one that a return to an older state undid is rolled back.
Down-weighted are those of the applied whose learning rate was lowered for their staleness (psruntime/config/values.py).
"""

from __future__ import annotations

from collections.abc import Sequence

# Columns, in pushes to one bucket.
RECEIVED, APPLIED, STALE, FENCED, REPEATED, NOT_FINITE, VOID = range(7)
ROLLED_BACK = 7
PENDING = 8  # contributions to a round that has not closed
MAX_STALENESS = 9  # not a count: the largest staleness of an applied update, in versions
DOWN_WEIGHTED = 10  # of the applied, so it is no term of the sum
LEDGER_SIZE = 11
OLDEST_SIZE = 10  # of rows that were saved before there was a column for down-weighted updates
CAUSES = {"stale": STALE, "fenced": FENCED, "repeated": REPEATED, "not_finite": NOT_FINITE, "void": VOID}

Row = Sequence[int]  # [LEDGER_SIZE]
EMPTY: tuple[int, ...] = (0,) * LEDGER_SIZE


def is_balanced(row: Row) -> bool:
    """Whether every push that arrived is accounted for."""
    accounted = row[APPLIED] + sum(row[c] for c in CAUSES.values()) + row[ROLLED_BACK] + row[PENDING]
    return bool(row[RECEIVED] == accounted and 0 <= row[DOWN_WEIGHTED] <= row[APPLIED])


def of_any_age(row: Row) -> tuple[int, ...]:
    """A saved row with the columns that there are now: those that were added since it was saved are 0."""
    return tuple(row) + (0,) * (LEDGER_SIZE - len(row)) if len(row) >= OLDEST_SIZE else tuple(row)


def brought_back(row: Row) -> list[int]:
    """The row with which a bucket goes on that was lost with its ps: a round that was open then is void."""
    new = list(row)
    new[VOID] += new[PENDING]
    new[PENDING] = 0
    return new
