"""The ledger: the fates of all updates, on each ps, and the accounts of the workers."""

from __future__ import annotations

from typing import Any

from psruntime.core.accounting.ledger import CAUSES, accounts_for_all, terms_of
from psruntime.core.members.messages import MemberStatus, PsStats
from psruntime.live.history import NAN, History
from psruntime.pages.figures import Strip
from psruntime.pages.page import Card, Page
from psruntime.pages.tables import Column, Table

FATES = {"applied": 0, "dropped": 5, "rolled back": 4, "pending": 6}  # and the numbers of their colours


def ledger_page() -> Page:
    fates = Strip("share of the received", FATES, "0 %", stacked=True)
    sums = Table([
        Column("ps", 40), Column("received", 85), Column("= applied", 85), Column("+ dropped", 95),
        Column("+ rolled back", 110), Column("+ pending", 95), Column("balances", 75, True),
        Column("down-weighted", 115), *(Column(cause, 75) for cause in CAUSES),
    ])  # fmt: skip
    accounts = Table([
        Column("worker", 70), Column("sent", 100), Column("received by all", 120), Column("unanswered", 90),
        Column("skipped batches", 120),
    ])  # fmt: skip

    def show(history: History) -> None:
        stats = [(ps.index, ps.ps_stats) for ps in history.ps if ps.ps_stats]
        sums.show([_sum_row(index, each) for index, each in stats])
        fates.show(
            [f"ps {index}" for index, _ in stats],
            {
                fate: [_fates(each)[fate] / each.received if each.received else 0.0 for _, each in stats]
                for fate in FATES
            },
        )
        accounts.show([_account(worker, history) for worker in history.workers])

    return Page(
        [
            Card("fates", "What became of the updates", "Of all that arrived at a ps, since its variables began.",
                 fates.figure, wide=True),
            Card("sums", "The ledgers", "In updates of buckets: received = applied + dropped + rolled back + pending. "
                 "Down-weighted are of the applied; the causes of the dropped follow.", sums.model, wide=True),
            Card("accounts", "The accounts of the workers", "Updates that a worker sent since it started, those "
                 "that every bucket has received since the job began, and those that some bucket has not; while it "
                 "trains, the last are under way.", accounts.model, wide=True),
        ],
        show,
    )  # fmt: skip


def _fates(stats: PsStats) -> dict[str, int]:
    return dict(zip(FATES, terms_of(stats).values(), strict=True))


def _sum_row(index: int, stats: PsStats) -> tuple[Any, ...]:
    fates = _fates(stats).values()
    balances = "yes" if accounts_for_all(stats) else "NO"
    causes = [stats.dropped.get(cause, 0) for cause in CAUSES]
    return index, stats.received, *fates, balances, stats.down_weighted, *causes


def _account(worker: MemberStatus, history: History) -> tuple[Any, ...]:
    received = [ps.ps_stats.received_of.get(worker.index, 0) for ps in history.ps if ps.ps_stats]
    stats, status = worker.worker_stats, history.status
    unanswered = status.unanswered.get(worker.index, 0) if status else 0
    sent, skipped = (stats.pushes, stats.skipped) if stats else (NAN, NAN)
    return worker.index, sent, min(received, default=0), unanswered, skipped
