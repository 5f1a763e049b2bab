"""The cluster: each process and its state, and the memory and traffic of each ps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from psruntime.core.members.job_status import Departure, MemberStatus
from psruntime.core.members.messages import ROW_COLUMNS
from psruntime.dashboard.drawing import figure
from psruntime.dashboard.figures import Curves, Strip, Value, bytes_columns, soften_legend, traffic_strip
from psruntime.dashboard.history import NAN, History, PsSample, Sample
from psruntime.dashboard.page import Card, Column, Lines, Page, Table, replace_data
from psruntime.errors import some

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


STATES = {"steps": "#00a37a", "serves": "#2a86d8", "waits": "#e69f00", "silent": "#d55e00", "lost": "#b3261e"}
CHIEF = "#8468d6"  # the colour of its border
ROW, SHORT_ROW, FEW = 32, 16, 64  # squares in a row, also of a few processes
SQUARE = 0.86  # of the room that a square has
NAMED = 8  # workers that are named where more wait for the same


def cluster_page() -> Page:
    squares = _Squares()
    waiting = Lines("workers", "number", "wait for", empty="none")
    ps = Table(
        [Column("ps", 50), Column("state", 60, True), Column("address", 170, True), Column("lease left, s", 90),
         Column("received/s", 90), Column("sent/s", 90), Column("share", 60), Column("incarnation", 140, True)],
        {"received/s": "0.0 d", "sent/s": "0.0 d", "share": "0 %", "lease left, s": "0.0"},
    )  # fmt: skip
    workers = Table(
        [Column("worker", 60), Column("state", 60, True), Column("chief", 50, True), Column("clock", 80),
         Column("lead", 50), Column("steps/s", 70), Column("examples/s", 85), Column("received/s", 85),
         Column("sent/s", 85), Column("lease left, s", 90), Column("waits for", 360, True)],
        {"steps/s": "0.0", "received/s": "0.0 d", "sent/s": "0.0 d", "lease left, s": "0.0"},
    )  # fmt: skip
    links = traffic_strip()

    def show(history: History) -> None:
        job, rates = history.job, history.rates
        lease_s, why = job.lease_s if job else 0.0, history.waiting
        members = [*history.ps, *history.workers]
        squares.show(members, history.lost, lease_s, why)
        waiting.show(waits_of(why))
        ps.show([_ps_row(each, lease_s) for each in history.ps])
        workers.show([
            (w.index, state_of(w, lease_s, why), "chief" if w.chief else "", w.clock, w.lead, rates.steps_per_s(w),
             w.worker_stats.examples_per_s if w.worker_stats else NAN, *rates.bytes_per_s(w), lease_s - w.silent_s,
             why.get(w.index, ""))
            for w in history.workers
        ])  # fmt: skip
        moved = [_moved(each) for each in history.ps] + [rates.bytes_per_s(each) for each in history.workers]
        links.show([f"{each.role} {each.index}" for each in members], bytes_columns(moved))

    return Page(
        [
            Card(
                "processes", "Processes", "A square for each, ps first, then the workers by index; the chief has a "
                "border. Silent: no heartbeat for half a lease; lost: its index has no process yet.",
                squares.figure, wide=True,
            ),
            Card("waiting", "Who waits for whom", "Workers that do not step now, by the reason.", waiting.model),
            Card("links", "Links", "Received up, sent down: of each ps, then of each worker.", links.figure),
            Card("ps", "Parameter servers", "A lease that ends makes the process lost.", ps.model, wide=True),
            Card("workers", "Workers", "Click on a head to sort.", workers.model, wide=True),
        ],
        show,
    )  # fmt: skip


def state_of(member: MemberStatus, lease_s: float, waiting: Collection[int]) -> str:
    """The state of a process, one of STATES."""
    if member.silent_s > lease_s / 2:
        return "silent"
    if member.ps_stats is not None:
        return "serves"
    return "waits" if member.index in waiting else "steps"


def waits_of(waiting: Mapping[int, str]) -> list[tuple[str, int, str]]:
    """(workers, their number, the reason), the most first."""
    by_reason: defaultdict[str, list[int]] = defaultdict(list)
    for index, why in waiting.items():
        by_reason[why].append(index)
    groups = sorted(by_reason.items(), key=lambda group: -len(group[1]))
    return [(some(list(map(str, indices)), NAMED), len(indices), reason) for reason, indices in groups]


def _moved(ps: MemberStatus) -> tuple[float, float]:
    return (ps.ps_traffic.received_per_s, ps.ps_traffic.sent_per_s) if ps.ps_traffic else (0.0, 0.0)


def _ps_row(ps: MemberStatus, lease_s: float) -> tuple[Any, ...]:
    moved = ps.ps_traffic
    rates = (moved.received_per_s, moved.sent_per_s) if moved else (NAN, NAN)
    share = NAN if moved is None or moved.share is None else moved.share
    return ps.index, state_of(ps, lease_s, ()), ps.address, lease_s - ps.silent_s, *rates, share, ps.incarnation


class _Squares:
    """A square for each process."""

    def __init__(self) -> None:
        from bokeh.models import ColumnDataSource, HoverTool, Range1d
        from bokeh.transform import factor_cmap

        names = ("x", "y", "process", "state", "border", "silent", "why")
        self.source = ColumnDataSource({name: [] for name in names})
        self.figure = made = figure(90, x_range=Range1d(-0.6, ROW - 0.4), y_range=Range1d(-0.6, 0.6))
        made.rect(
            "x", "y", width=SQUARE, height=SQUARE, source=self.source, line_color=None,
            fill_color=factor_cmap("state", list(STATES.values()), list(STATES)), legend_field="state",
        )  # fmt: skip
        made.rect(
            "x", "y", width=SQUARE, height=SQUARE, source=self.source, fill_color=None, line_color=CHIEF,
            line_width="border",
        )  # fmt: skip
        made.axis.visible = False
        made.grid.visible = False
        soften_legend(made)
        tips = [("process", "@process"), ("state", "@state"), ("silent", "@silent{0.0} s"), ("why", "@why")]
        made.add_tools(HoverTool(tooltips=tips))

    def show(
        self, members: list[MemberStatus], lost: list[Departure], lease_s: float, waiting: Mapping[int, str]
    ) -> None:
        ps = [m for m in members if m.ps_stats is not None]
        count = len(members) + len(lost)
        row = SHORT_ROW if count <= FEW else ROW
        first_row = -(-len(ps) // row)  # of the workers
        places = [divmod(i, row) for i in range(len(ps))]
        places += [(first_row + i // row, i % row) for i in range(count - len(ps))]
        self.figure.x_range.end = row - 0.4
        reasons = ["-" if m.ps_stats else waiting.get(m.index, "-") for m in members]
        shown: list[MemberStatus | Departure] = [*members, *lost]
        replace_data(self.source, {
            "x": [x for _, x in places], "y": [-y for y, _ in places],
            "process": [f"{each.role} {each.index}" for each in shown],
            "state": [*(state_of(m, lease_s, waiting) for m in members), *("lost" for _ in lost)],
            "border": [*(3 if m.chief else 0 for m in members), *(0 for _ in lost)],
            "silent": [*(m.silent_s for m in members), *(each.ago_s for each in lost)],
            "why": [*reasons, *(each.reason for each in lost)],
        })  # fmt: skip
        rows = max((y for y, _ in places), default=0) + 1
        height = 50 + 30 * rows
        if self.figure.height != height:
            self.figure.height, self.figure.y_range.start = height, 0.4 - rows
