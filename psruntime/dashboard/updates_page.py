"""What the job makes of updates: throughput and loss, staleness, the ledger; and the events."""

from __future__ import annotations

from typing import Any

from psruntime.core.accounting.accounts import CAUSES, accounts_for_all, terms_of
from psruntime.core.members.job_status import MemberStatus
from psruntime.core.members.messages import STALENESS_LIMITS, PsStats
from psruntime.dashboard.drawing import colour_of, figure
from psruntime.dashboard.figures import COUNTS, Curves, Strip, soften_legend
from psruntime.dashboard.history import NAN, WINDOW_S, History
from psruntime.dashboard.page import Card, Column, Lines, Page, Table, replace_data, time_text


def progress_page() -> Page:
    band = (lambda s: s.loss_least, lambda s: s.loss_most)
    loss = Curves("loss", [("mean", lambda s: s.loss)], band, from_zero=False, as_it_is=True)
    steps = Curves("global steps per second", [("steps/s", lambda s: s.steps_per_s)], number="0,0.[0]")
    examples = Curves("examples per second", [("examples/s", lambda s: s.examples_per_s)], number="0.[0]a")
    reached = Curves("global step", [("global step", lambda s: s.global_step)], number="0.[00]a", from_zero=False)
    curves = {"loss": loss, "steps": steps, "examples": examples, "reached": reached}

    def show(history: History) -> None:
        for each in curves.values():
            each.show(history)

    return Page(
        [
            Card("loss", "Loss", "Of the workers' last steps: mean, and from the least to the most.", loss.figure),
            Card("examples", "Throughput", "Examples per second, all workers together.", examples.figure),
            Card("steps", "Steps", "Updates per second; in mode sync rounds.", steps.figure),
            Card("reached", "Global step", "It falls where a ps was lost and the job went back.", reached.figure),
        ],
        show,
    )


LEAST_BARS = 6
SPREAD = 0.4  # of a bar; two stand beside each other


def labels() -> list[str]:
    """The labels of the bars: 0, 1, 2, 3-4, 5-8 and so on, in versions."""
    ends = list(STALENESS_LIMITS)
    begins = [0, *(end + 1 for end in ends[:-1])]
    named = [f"{begin}" if begin == end else f"{begin}-{end}" for begin, end in zip(begins, ends, strict=True)]
    return [*named, f"{ends[-1]}+"]


def staleness_page() -> Page:
    histogram = _Histogram()
    workers = Strip("versions", {"p99": 1, "p50": 0}, COUNTS)
    on_ps = Strip("versions", {"largest": 5}, COUNTS)

    def show(history: History) -> None:
        histogram.show(history)
        stats = [worker.worker_stats for worker in history.workers]
        workers.show(
            [f"worker {worker.index}" for worker in history.workers],
            {"p99": [each.staleness_p99 if each else NAN for each in stats],
             "p50": [each.staleness_p50 if each else NAN for each in stats]},
        )  # fmt: skip
        largest = [ps.ps_stats.max_staleness if ps.ps_stats else NAN for ps in history.ps]
        on_ps.show([f"ps {ps.index}" for ps in history.ps], {"largest": largest})

    return Page(
        [
            Card(
                "histogram", "Staleness of updates", "Share of the updates, by how many versions others made between "
                f"pull and update: of the last {WINDOW_S:.0f} s, and of all since the workers started. Rounds of mode "
                "sync have none.", histogram.figure, wide=True,
            ),
            Card("of_workers", "Of each worker", "Of its last steps: median and 99th percentile.", workers.figure),
            Card("on_ps", "On each ps", "The largest of an update that was applied.", on_ps.figure),
        ],
        show,
    )  # fmt: skip


class _Histogram:
    def __init__(self) -> None:
        from bokeh.models import ColumnDataSource, FactorRange, HoverTool, NumeralTickFormatter
        from bokeh.transform import dodge

        names = labels()
        columns = {name: [0.0] * len(names) for name in ("recent", "all", "count")}  # patched, so each its own
        self.source = ColumnDataSource({"versions": names, **columns})
        self.figure = made = figure(x_range=FactorRange(*names), x_axis_label="versions", y_axis_label="updates")
        for place, (column, legend) in enumerate((("recent", f"last {WINDOW_S:.0f} s"), ("all", "since the start"))):
            made.vbar(
                dodge("versions", (place - 0.5) * SPREAD, range=made.x_range), top=column, width=0.95 * SPREAD,
                source=self.source, fill_color=colour_of(place), line_color=None, legend_label=legend,
            )  # fmt: skip
        soften_legend(made)
        made.y_range.start = 0
        made.xgrid.grid_line_color = None
        made.xaxis.major_label_orientation = 0.7
        made.yaxis.formatter = NumeralTickFormatter(format="0 %")
        tips = [("versions", "@versions"), ("recently", "@recent{0.0 %}"), ("all", "@all{0.0 %}"), ("count", "@count")]
        made.add_tools(HoverTool(tooltips=tips))

    def show(self, history: History) -> None:
        recent, whole = history.staleness(WINDOW_S), history.staleness()
        last = max((place for place, count in enumerate(whole) if count), default=0)
        shown = labels()[: max(last + 1, LEAST_BARS)]
        if self.figure.x_range.factors != shown:
            self.figure.x_range.factors = shown
        replace_data(self.source, {
            "versions": labels(), "recent": _shares(recent), "all": _shares(whole), "count": list(whole),
        })  # fmt: skip


def _shares(counts: tuple[int, ...]) -> list[float]:
    total = sum(counts)
    return [count / total if total else 0.0 for count in counts]


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


def events_page() -> Page:
    events = Lines("at", "what", "who", "why")
    gone = Lines("since", "who", "how", "why", empty="none")

    def show(history: History) -> None:
        events.show([(time_text(e.at_s), e.kind, e.subject, e.reason) for e in reversed(history.events)])
        departures = list(reversed(history.status.departures)) if history.status else []
        gone.show([
            (time_text(history.at_s - d.ago_s), f"{d.role} {d.index}",
             "lost" if d.kind is None else f"left ({d.kind})", d.reason)
            for d in departures
        ])  # fmt: skip

    return Page(
        [
            Card("events", "Events", "The latest first, since this dashboard looks; ps 0's log has all of them.",
                 events.model, wide=True),
            Card("gone", "Who is gone", "The coordinator's list, also from before.", gone.model, wide=True),
        ],
        show,
    )  # fmt: skip
