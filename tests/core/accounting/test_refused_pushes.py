"""A job that applies nothing for long ends; one that applies something now and then goes on."""

from __future__ import annotations

from psruntime.core.accounting.accounts import LIMIT, LIMIT_PER_WORKER, RefusedPushes
from psruntime.core.members.messages import PsStats

BUCKETS = 3
WORKERS = 4
MOST = LIMIT + WORKERS * LIMIT_PER_WORKER


def stats(applied: int, refused: int, stale: int = 0) -> PsStats:
    """After so many pushes to each bucket."""
    dropped = {"not_finite": refused * BUCKETS, "stale": stale * BUCKETS}
    received = (applied + refused + stale) * BUCKETS
    return PsStats(buckets=BUCKETS, received=received, applied=applied * BUCKETS, dropped=dropped)


def test_a_job_whose_pushes_are_all_refused_has_no_hope() -> None:
    pushes = RefusedPushes()
    for ps in (0, 1):
        pushes.update(ps, stats(7, 100, stale=900))
    for refused in (1, 500, MOST - 1):
        pushes.update(0, stats(7, 100 + refused, stale=900))
        assert pushes.why_hopeless(WORKERS) == ""
    pushes.update(0, stats(7, 100 + MOST, stale=900))
    assert pushes.why_hopeless(WORKERS) == "", "ps 1 has not said so yet"
    pushes.update(1, stats(7, 100 + MOST, stale=900))
    why = pushes.why_hopeless(WORKERS)
    assert why.startswith(f"none of the last {MOST} pushes was applied; most were refused as not_finite")


def test_an_update_now_and_then_is_enough() -> None:
    pushes = RefusedPushes()
    for applied in range(50):
        for refused in (0, MOST - 1):
            pushes.update(0, stats(applied, applied * (MOST - 1) + refused))
            assert pushes.why_hopeless(WORKERS) == ""


def test_a_ps_that_lost_its_counters_begins_anew() -> None:
    pushes = RefusedPushes()
    pushes.update(0, stats(7, 0))
    pushes.update(0, stats(7, MOST - 1))
    pushes.update(0, stats(7, 0))
    pushes.update(0, stats(7, MOST - 1))
    assert pushes.why_hopeless(WORKERS) == ""
    pushes.update(0, PsStats())  # it knows no buckets yet
    assert pushes.why_hopeless(WORKERS) == ""


def test_a_job_of_scripts_has_no_ledgers() -> None:
    pushes = RefusedPushes()
    pushes.update(0, PsStats())
    assert pushes.why_hopeless(WORKERS) == ""
