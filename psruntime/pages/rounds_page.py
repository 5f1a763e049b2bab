"""Rounds, and late workers: those that the others wait for, in mode sync and in mode bounded."""

from __future__ import annotations

from psruntime.live.history import NAN, WINDOW_S, History
from psruntime.observe.render import mode_of
from psruntime.pages.figures import COUNTS, Curves, Strip
from psruntime.pages.page import Card, Page
from psruntime.pages.tables import Column, Lines, Table


def rounds_page() -> Page:
    rounds = Lines("what", "now")
    late = Strip("share of the looks", {"late": 5}, "0 %")
    speed = Curves("per second", [("rounds or steps", lambda s: s.steps_per_s)], number="0,0.[0]")
    waiting = Curves("workers", [("wait", lambda s: s.waiting), ("are live", lambda s: s.workers)], number=COUNTS)
    workers = Table(
        [Column("worker", 60), Column("late", 60), Column("steps/s", 75), Column("share", 60), Column("examples/s", 90),
         Column("now", 60, True), Column("waits for", 420, True)],
        {"late": "0 %", "steps/s": "0.0"},
    )  # fmt: skip

    def show(history: History) -> None:
        shares, waits = history.late_share(), history.waiting
        rounds.show(facts_of(history, shares))
        late.show([f"worker {index}" for index in shares], {"late": list(shares.values())})
        speed.show(history)
        waiting.show(history)
        workers.show([
            (w.index, shares.get(w.index, 0.0), history.rates.steps_per_s(w), w.share or NAN,
             w.worker_stats.examples_per_s if w.worker_stats else NAN, "waits" if w.index in waits else "steps",
             waits.get(w.index, ""))
            for w in history.workers
        ])  # fmt: skip

    return Page(
        [
            Card("rounds", "The open round", "In other modes than sync: the steps.", rounds.model),
            Card("late", "Who is late", f"How often, of the looks in the last {WINDOW_S:.0f} s, a worker was still at "
                 "work while others waited: the slowest, and in a round all that had not contributed.", late.figure),
            Card("speed", "Speed", "Rounds per second; in other modes updates.", speed.figure),
            Card("waiting", "Waiting workers", "Of those that are live, how many do not step.", waiting.figure),
            Card("workers", "Workers", "Share: examples that a worker computes of a round, where rounds have shares.",
                 workers.model, wide=True),
        ],
        show,
    )  # fmt: skip


def facts_of(history: History, late: dict[int, float]) -> list[tuple[str, str]]:
    """(name, value now)."""
    status, job = history.status, history.job
    if status is None or job is None:
        return []
    sync = mode_of(status, job) == "sync"
    now = history.samples[-1]
    latest = max(late, key=lambda index: late[index], default=None)
    slowest = "none" if latest is None or not late[latest] else f"worker {latest}, {late[latest]:.0%} of the looks"
    return [
        ("rounds that closed" if sync else "global step", f"{status.global_step:,}"),
        ("per second", f"{now.steps_per_s:,.1f}"),
        ("waiting now", f"{now.waiting} of {now.workers} workers"),
        ("most often waited for", slowest),
        ("the coordinator's reason", status.reason),
    ]
