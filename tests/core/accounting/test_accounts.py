"""What workers say that they sent, against what the ps received."""

from __future__ import annotations

from psruntime.core.accounting.accounts import Accounts, account_facts
from psruntime.core.members.messages import PsStats, WorkerStats


def stats(received_of: dict[int, int], **counts: int) -> PsStats:
    return PsStats(buckets=1, received_of=received_of, dropped={"stale": counts.pop("stale", 0)}, **counts)


def test_all_that_was_sent_was_received() -> None:
    accounts = Accounts()
    accounts.hear(0, WorkerStats(pushes=5))
    accounts.hear(3, WorkerStats(pushes=2))
    accounts.hear(0, stats({0: 5, 3: 2}, received=7, applied=6, stale=1))
    accounts.hear(1, stats({0: 5, 3: 2}, received=7, applied=7))
    totals = accounts.totals()
    assert totals.balanced and totals.unanswered == {}
    assert (totals.stats.received, totals.stats.applied, totals.stats.dropped) == (14, 13, {"stale": 1})


def test_what_one_ps_has_not_received_is_named_by_its_worker() -> None:
    accounts = Accounts()
    accounts.hear(0, WorkerStats(pushes=5))
    accounts.hear(1, WorkerStats(pushes=4))
    accounts.hear(0, stats({0: 5, 1: 4}, received=9, applied=9))
    accounts.hear(1, stats({0: 5, 1: 1}, received=6, applied=6))
    assert accounts.totals().unanswered == {1: 3}
    assert account_facts(accounts.totals())["unanswered"] == "worker 1: 3"


def test_a_worker_that_was_started_again_counts_on() -> None:
    accounts = Accounts()
    accounts.hear(0, WorkerStats(pushes=5))
    accounts.hear(0, WorkerStats(pushes=0))  # the heartbeat with which the new process began
    accounts.hear(0, WorkerStats(pushes=2))
    accounts.hear(0, stats({0: 6}, received=6, applied=6))
    assert accounts.totals().unanswered == {0: 1}


def test_more_received_than_told_of_is_no_loss() -> None:
    """The last heartbeat of a worker that was killed is older than its last push."""
    accounts = Accounts()
    accounts.hear(0, WorkerStats(pushes=5))
    accounts.hear(0, stats({0: 6}, received=6, applied=6))
    assert accounts.totals().unanswered == {}


def test_a_ps_that_left_is_still_counted_and_an_empty_one_says_nothing() -> None:
    accounts = Accounts()
    accounts.hear(0, WorkerStats(pushes=3))
    accounts.hear(1, PsStats())
    assert accounts.totals().unanswered == {}, "nobody has said anything yet"
    accounts.hear(1, stats({0: 3}, received=3, applied=1, rolled_back=1, pending=1))
    accounts.hear(1, PsStats())
    assert accounts.totals().stats.received == 3
    assert accounts.totals().balanced


def test_an_update_that_is_nowhere_unbalances() -> None:
    accounts = Accounts()
    accounts.hear(0, stats({}, received=3, applied=2))
    assert not accounts.totals().balanced
