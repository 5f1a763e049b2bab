"""For how long a ps keeps what belongs to a worker that is gone."""

from __future__ import annotations

from psruntime.core.members.departures import KEPT_LEASES, SessionCleanup

LEASE_S = 2.0
KEPT_S = KEPT_LEASES * LEASE_S


def test_who_is_gone_is_told_once_when_its_time_is_over() -> None:
    cleanup = SessionCleanup(LEASE_S)
    cleanup.update({0, 1, 2}, 0.0)
    cleanup.update({0}, 5.0)
    cleanup.update({0}, 6.0)
    assert cleanup.take_overdue(5.0 + KEPT_S - 0.1) is None
    assert [cleanup.take_overdue(5.0 + KEPT_S) for _ in range(3)] == [1, 2, None]
    assert cleanup.take_overdue(100.0) is None


def test_the_longest_gone_comes_first() -> None:
    cleanup = SessionCleanup(LEASE_S)
    cleanup.update({0, 1, 2}, 0.0)
    cleanup.update({0, 1}, 1.0)
    cleanup.update({1}, 2.0)
    assert cleanup.take_overdue(1.0 + KEPT_S) == 2
    assert cleanup.take_overdue(1.0 + KEPT_S) is None
    assert cleanup.take_overdue(2.0 + KEPT_S) == 0


def test_who_comes_back_is_not_told() -> None:
    cleanup = SessionCleanup(LEASE_S)
    cleanup.update({3}, 0.0)
    cleanup.update(set(), 1.0)
    cleanup.update({3}, 2.0)
    assert cleanup.take_overdue(100.0) is None
    cleanup.update(set(), 100.0)
    assert cleanup.take_overdue(100.0 + KEPT_S) == 3


def test_nobody_is_gone_before_it_was_there() -> None:
    cleanup = SessionCleanup(LEASE_S)
    cleanup.update(set(), 0.0)
    assert cleanup.take_overdue(100.0) is None
