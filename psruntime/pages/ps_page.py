"""Memory and traffic of each ps."""

from __future__ import annotations

from typing import Any

from psruntime.core.members.messages import ROW_COLUMNS, MemberStatus
from psruntime.live.history import NAN, History, PsSample, Sample
from psruntime.pages.figures import Curves, Strip, Value, bytes_columns, traffic_strip
from psruntime.pages.page import Card, Page
from psruntime.pages.tables import Column, Table

MOST_CURVES = 7  # ps with a curve each, one for each colour


def ps_page() -> Page:
    memory = Strip("bytes", {"variables": 2}, "0.[0]a")
    traffic = traffic_strip()
    received = _PsCurves("received_per_s")
    sent = _PsCurves("sent_per_s")
    numbers = Table(
        [Column("ps", 50), Column("address", 170, True), Column("variables", 90), Column("buckets", 70),
         Column("received/s", 90), Column("sent/s", 90), Column("share", 60), Column("heavy", 60, True),
         Column("updates", 100), Column("silent, s", 70)],
        {"variables": "0.0 d", "received/s": "0.0 d", "sent/s": "0.0 d", "share": "0 %", "silent, s": "0.0"},
    )  # fmt: skip
    tables = Table([
        Column("dynamic table", 220, True), Column("ps", 50), *(Column(name, 90) for name in ROW_COLUMNS),
    ])  # fmt: skip

    def show(history: History) -> None:
        names = [f"ps {ps.index}" for ps in history.ps]
        memory.show(names, {"variables": [ps.ps_stats.bytes_held if ps.ps_stats else NAN for ps in history.ps]})
        moved = [ps.ps_traffic for ps in history.ps]
        rates = [(each.received_per_s, each.sent_per_s) if each else (0.0, 0.0) for each in moved]
        traffic.show(names, bytes_columns(rates))
        received.show(history)
        sent.show(history)
        numbers.show([_row(ps) for ps in history.ps])
        tables.show([
            (c.table, ps.index, *c.shown.values())
            for ps in history.ps if ps.ps_stats
            for c in ps.ps_stats.row_counts
        ])  # fmt: skip

    return Page(
        [
            Card("memory", "Memory", "Bytes of variables and optimizer slots on each ps.", memory.figure),
            Card("traffic", "Traffic", "Received up, sent down, of the last 10 to 20 s.", traffic.figure),
            Card("received", "Received", f"Of the first {MOST_CURVES} ps, bytes per second.", received.figure),
            Card("sent", "Sent", f"Of the first {MOST_CURVES} ps, bytes per second.", sent.figure),
            Card("numbers", "Parameter servers", "Heavy: it carries more than 1.5 times its share of the traffic.",
                 numbers.model, wide=True),
            Card("tables", "Dynamic tables", "Rows that have an id, and the fates of the rows of gradients.",
                 tables.model, wide=True),
        ],
        show,
    )  # fmt: skip


class _PsCurves(Curves):
    """Curves of the first ps; absent ones are not in the legend."""

    def __init__(self, of: str) -> None:
        super().__init__("bytes per second", [(f"ps {i}", _value(i, of)) for i in range(MOST_CURVES)], number="0.[0]a")
        self._items = self.figure.legend[0].items

    def show(self, history: History) -> None:
        super().show(history)
        seen = {ps.index for ps in history.ps}
        for place, item in enumerate(self._items):
            item.visible = place in seen


def _value(index: int, of: str) -> Value:
    return lambda sample: _of_sample(sample, index, of)


def _of_sample(sample: Sample, index: int, of: str) -> float:
    return float(getattr(sample.ps.get(index, PsSample()), of))


def _row(ps: MemberStatus) -> tuple[Any, ...]:
    stats, moved = ps.ps_stats, ps.ps_traffic
    size, buckets, applied = (stats.bytes_held, stats.buckets, stats.applied) if stats else (NAN, NAN, NAN)
    rates = (moved.received_per_s, moved.sent_per_s) if moved else (NAN, NAN)
    share = NAN if moved is None or moved.share is None else moved.share
    heavy = "heavy" if moved and moved.heavy else ""
    return ps.index, ps.address, size, buckets, *rates, share, heavy, applied, ps.silent_s
