"""The ledger of a bucket: what became of every push that arrived there.

A row of counters, kept on the bucket's ps under its mutex:
received = applied + the causes of a drop + rolled back + pending.
Applied are the updates that the bucket holds; one that a return to an older state undid is rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence

# Columns, in pushes to one bucket.
RECEIVED, APPLIED, STALE, FENCED, REPEATED, NOT_FINITE, VOID = range(7)
ROLLED_BACK = 7
PENDING = 8  # contributions to a round that has not closed
MAX_STALENESS = 9  # not a count: the largest staleness of an applied update, in versions
LEDGER_SIZE = 10
CAUSES = {"stale": STALE, "fenced": FENCED, "repeated": REPEATED, "not_finite": NOT_FINITE, "void": VOID}

Row = Sequence[int]  # [LEDGER_SIZE]
EMPTY: tuple[int, ...] = (0,) * LEDGER_SIZE


def is_balanced(row: Row) -> bool:
    """Whether every push that arrived is accounted for."""
    return row[RECEIVED] == row[APPLIED] + sum(row[c] for c in CAUSES.values()) + row[ROLLED_BACK] + row[PENDING]


def brought_back(row: Row) -> list[int]:
    """The row with which a bucket goes on that was lost with its ps: a round that was open then is void."""
    new = list(row)
    new[VOID] += new[PENDING]
    new[PENDING] = 0
    return new
