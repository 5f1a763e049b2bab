"""Clocks and rounds: which workers are late, and for which the others wait."""

from __future__ import annotations

from typing import Any

from psruntime.config.schedule import SYNC
from psruntime.dashboard.cluster_page import STATES, state_of
from psruntime.dashboard.drawing import figure
from psruntime.dashboard.figures import COUNTS, Curves, Strip, soften_legend
from psruntime.dashboard.history import NAN, WINDOW_S, History, Sample
from psruntime.dashboard.page import Card, Column, Lines, Page, Table, replace_data
from psruntime.observe.render import mode_of

FLOOR, BOUND = "#8468d6", "#d55e00"  # the colours of their lines
SPREAD = 0.8  # of the room that a worker has
FEW = 40  # workers; with more of them each has a thinner lane
MOST_LABELS = 40
NAME_HEIGHT = 20  # pixels above the lanes, for the names of the lines


def clocks_page() -> Page:
    race = _Race()
    leads = Curves(
        "steps over the floor",
        [("largest lead", lambda s: s.lead_most), ("bound + 1", _stop_of)],
        number=COUNTS,
    )
    waiting = Curves("workers", [("wait", lambda s: s.waiting), ("are live", lambda s: s.workers)], number=COUNTS)

    def show(history: History) -> None:
        race.show(history)
        leads.show(history)
        waiting.show(history)

    return Page(
        [
            Card(
                "race", "The race", "Steps of each worker. The floor is the slowest live clock. A step may start up to "
                "the bound ahead of it, so clocks stop one further: there a worker waits. In mode sync they have "
                "contributed to the open round there.",
                race.figure, wide=True,
            ),
            Card("leads", "Leads", "The largest lead over the floor, and where it stops.", leads.figure),
            Card("waits", "Waiting workers", "Of those that are live, how many do not step.", waiting.figure),
        ],
        show,
    )  # fmt: skip


def _stop_of(sample: Sample) -> float:
    return sample.bound + 1


class _Race:
    """A lane for each worker, by index from the top; the x axis moves with the floor."""

    def __init__(self) -> None:
        from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, NumeralTickFormatter, Range1d, Span
        from bokeh.transform import factor_cmap

        self.source = ColumnDataSource({name: [] for name in ("lane", "left", "clock", "lead", "state", "who", "why")})
        self.figure = made = figure(
            x_axis_label="clock, steps", y_axis_label="worker", x_range=Range1d(0, 1), y_range=Range1d(0.5, -1.5)
        )
        made.hbar(
            "lane", left="left", right="clock", height=SPREAD, source=self.source, line_color=None,
            fill_color=factor_cmap("state", list(STATES.values()), list(STATES)), legend_field="state",
        )  # fmt: skip
        soften_legend(made)
        made.xaxis.formatter = NumeralTickFormatter(format="0,0")
        made.xaxis.ticker.update(desired_num_ticks=5, min_interval=1)
        made.ygrid.grid_line_color = None
        self._labels: dict[int, str] = {}
        self._ticker = made.yaxis.ticker = FixedTicker(ticks=[])
        self.floor = Span(location=0, dimension="height", line_color=FLOOR, line_width=2)
        self.bound = Span(location=0, dimension="height", line_color=BOUND, line_width=2, line_dash="dashed")
        made.add_layout(self.floor)
        made.add_layout(self.bound)
        self._names = [_name_of("floor", FLOOR, "right"), _name_of("bound + 1", BOUND, "left")]
        for name in self._names:
            made.add_layout(name)
        tips = [("worker", "@who"), ("clock", "@clock{0,0}"), ("lead", "@lead"), ("waits for", "@why")]
        made.add_tools(HoverTool(tooltips=tips))

    def show(self, history: History) -> None:
        if not history.samples or history.status is None or history.job is None:
            return
        workers, now, lease_s = history.workers, history.samples[-1], history.job.lease_s
        bound = history.bound
        span = max(now.lead_most, 0 if bound is None else bound + 1, 1)
        begin = now.floor - 0.25 * span
        replace_data(self.source, {
            "lane": list(range(len(workers))), "left": [begin] * len(workers), "clock": [w.clock for w in workers],
            "lead": [w.lead for w in workers], "state": [state_of(w, lease_s, history.waiting) for w in workers],
            "who": [f"{w.index}{', chief' if w.chief else ''}" for w in workers],
            "why": [history.waiting.get(w.index, "-") for w in workers],
        })  # fmt: skip
        self.figure.x_range.update(start=begin, end=now.floor + 1.15 * span + 0.5)
        self.floor.location = now.floor
        self.bound.visible = bound is not None
        self.bound.location = now.floor + (bound or 0) + 1
        self._lanes([w.index for w in workers])
        for name, at in zip(self._names, (self.floor, self.bound), strict=True):
            name.update(x=at.location, y=self.figure.y_range.end, visible=at.visible)

    def _lanes(self, indices: list[int]) -> None:
        each = 22 if len(indices) <= FEW else 4
        height = 110 + NAME_HEIGHT + max(each * len(indices), 40)
        if self.figure.height != height:
            self.figure.height = height
            self.figure.y_range.update(start=len(indices) - 0.5, end=-0.5 - NAME_HEIGHT / each)
        every = -(-len(indices) // MOST_LABELS) or 1
        labels = {lane: str(indices[lane]) for lane in range(0, len(indices), every)}
        if self._labels != labels:
            self._labels = labels
            self.figure.yaxis.major_label_overrides = labels
            self._ticker.ticks = list(labels)


def _name_of(line: str, colour: str, side: str) -> Any:
    """A text beside the line, on the left or the right of it."""
    from bokeh.models import Label

    return Label(
        x=0, y=0, text=line, text_color=colour, text_font_size="12px", text_baseline="top", y_offset=-2,
        x_offset=-4 if side == "left" else 4, text_align="right" if side == "left" else "left", visible=False,
    )  # fmt: skip


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
    sync = mode_of(status, job) == SYNC
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
