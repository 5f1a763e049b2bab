"""Staleness: how many updates of others came between pull and update."""

from __future__ import annotations

from psruntime.core.members.messages import STALENESS_LIMITS
from psruntime.live.history import NAN, WINDOW_S, History
from psruntime.pages.drawing import colour_of, figure
from psruntime.pages.figures import COUNTS, Strip, soften_legend
from psruntime.pages.page import Card, Page
from psruntime.pages.tables import replace_data

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
