"""The figures of the pages: curves over the last minutes, and strips, with a bar for each process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from psruntime.dashboard.drawing import GREY, colour_of, figure
from psruntime.dashboard.history import NAN, SAMPLES, History, Sample
from psruntime.dashboard.page import replace_data

HEIGHT = 240  # pixels, of curves
COUNTS = "0,0"  # format of whole numbers
STRIP_HEIGHT = 220
LEAST_ROOM = 6  # bars for which there is room at least: two would be walls
MOST_LABELS = 8  # processes that have a label of their own on the axis
BAR = 0.85  # of the room that a bar has
Value = Callable[[Sample], float]


class Curves:
    """A figure of samples: a line for each (name, value); band: (least, most), filled between."""

    def __init__(
        self,
        y_label: str,
        lines: Sequence[tuple[str, Value]],
        band: tuple[Value, Value] | None = None,
        number: str = "0.[00]a",
        from_zero: bool = True,
        as_it_is: bool = False,
    ) -> None:
        """as_it_is: whether the numbers of the y axis have all their digits, also small ones."""
        from bokeh.models import ColumnDataSource, HoverTool

        self._values = dict(lines)
        if band:
            self._values |= {"least": band[0], "most": band[1]}
        self._seen_s = 0.0
        self._generation = 0  # of the history
        self.source = ColumnDataSource({"time": [], **{name: [] for name in self._values}})
        self.figure = time_figure(y_label, "" if as_it_is else number, from_zero)
        if band:
            self.figure.varea("time", "least", "most", source=self.source, fill_color=colour_of(0), fill_alpha=0.18)
        for place, (name, _) in enumerate(lines):
            label = {"legend_label": name} if len(lines) > 1 else {}
            self.figure.line(
                "time", name, source=self.source, line_width=2, line_color=colour_of(place), **label
            )  # fmt: skip
        soften_legend(self.figure)
        tips = [(name, f"@{{{name}}}" + ("" if as_it_is else f"{{{number}}}")) for name in self._values]
        hover = HoverTool(tooltips=[("at", "@time{%T}"), *tips], formatters={"@time": "datetime"}, mode="vline")
        self.figure.add_tools(hover)

    def show(self, history: History) -> None:
        """Adds new samples; clears those of another job.  Lines have a gap where the coordinator did not answer."""
        if self._generation != history.generation:
            self._generation, self._seen_s = history.generation, 0.0
            self.source.data = {name: [] for name in self.source.data}
        new = new_samples(history, self._seen_s)
        if new:
            self._seen_s = new[-1].at_s
            data: dict[str, list[float]] = {name: [] for name in self.source.data}
            for sample in new:
                if sample.after_absence:
                    _add(data, milliseconds(sample), dict.fromkeys(self._values, NAN))
                _add(data, milliseconds(sample), {name: float(value(sample)) for name, value in self._values.items()})
            self.source.stream(data, rollover=SAMPLES)


def _add(data: dict[str, list[float]], time: float, values: dict[str, float]) -> None:
    for name, value in {"time": time, **values}.items():
        data[name].append(value)


def new_samples(history: History, seen_s: float) -> list[Sample]:
    """The samples after `seen_s`."""
    found: list[Sample] = []
    for sample in reversed(history.samples):
        if sample.at_s <= seen_s:
            break
        found.append(sample)
    return found[::-1]


def milliseconds(sample: Sample) -> float:
    """Its time since 1970, shifted to the local time of this machine: a browser draws times as they are."""
    offset = datetime.fromtimestamp(sample.at_s).astimezone().utcoffset()
    return 1000 * (sample.at_s + (offset.total_seconds() if offset else 0.0))


def time_figure(y_label: str, number: str, from_zero: bool) -> Any:
    from bokeh.models import DatetimeTickFormatter, NumeralTickFormatter

    made = figure(HEIGHT, x_axis_type="datetime", y_axis_label=y_label)
    made.xaxis.formatter = DatetimeTickFormatter(
        milliseconds="%T", seconds="%T", minsec="%T", minutes="%H:%M", hourmin="%H:%M", hours="%H:%M"
    )
    made.xaxis.ticker.desired_num_ticks = 4
    if number:
        made.yaxis.formatter = NumeralTickFormatter(format=number)
    if number == COUNTS:
        made.yaxis.ticker.min_interval = 1
    if from_zero:
        made.y_range.start = 0
    return made


def soften_legend(made: Any) -> None:
    """Places the legend above the figure, in the colours of the page."""
    for legend in made.legend:
        legend.background_fill_alpha = 0.0
        legend.border_line_alpha = 0.0
        legend.label_text_color = GREY
        legend.label_text_font_size = "12px"
        legend.orientation = "horizontal"
        legend.padding, legend.margin, legend.spacing = 0, 4, 12
        made.add_layout(legend, "above")


class Strip:
    """One narrow bar for each process, side by side, so that hundreds fit; its numbers are in the tooltip.

    The bars of a process are drawn over each other in the order of `bars` (name -> colour's number), or on top of each
    other if `stacked`; those in `down` point down.
    """

    def __init__(
        self,
        y_label: str,
        bars: Mapping[str, int],
        number: str,
        down: Sequence[str] = (),
        stacked: bool = False,
        height: int = STRIP_HEIGHT,
    ) -> None:
        from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, NumeralTickFormatter, Range1d

        self.bars, self._down = tuple(bars), down
        self.source = ColumnDataSource({name: [] for name in ("at", "process", *bars, *map(_drawn, bars))})
        self.figure = made = figure(height, y_axis_label=y_label, x_range=Range1d(-0.6, LEAST_ROOM - 0.4))
        labels: dict[str, dict[str, Any]] = {name: {"legend_label": name} if len(bars) > 1 else {} for name in bars}
        if stacked:
            made.vbar_stack(
                [_drawn(name) for name in bars], x="at", width=BAR, source=self.source, line_color=None,
                fill_color=[colour_of(number) for number in bars.values()], legend_label=list(bars),
            )  # fmt: skip
        else:
            for name, place in bars.items():
                made.vbar(
                    "at", top=_drawn(name), width=BAR, source=self.source, fill_color=colour_of(place),
                    line_color=None, **labels[name],
                )  # fmt: skip
        soften_legend(made)
        made.yaxis.formatter = NumeralTickFormatter(format=number)
        if number == COUNTS:
            made.yaxis.ticker.min_interval = 1
        made.xgrid.grid_line_color = None
        self._labels: dict[int, str] = {}
        self._ticker = made.xaxis.ticker = FixedTicker(ticks=[])
        if not down:
            made.y_range.start = 0
        tips = [(name, f"@{{{name}}}{{{number}}}") for name in bars]
        made.add_tools(HoverTool(tooltips=[("process", "@process"), *tips]))

    def show(self, processes: Sequence[str], values: Mapping[str, Sequence[float]]) -> None:
        """values: name of a bar -> a number for each process."""
        drawn = {_drawn(n): [-v if n in self._down else v for v in values[n]] for n in self.bars}
        data: dict[str, list[Any]] = {"at": list(range(len(processes))), "process": list(processes)}
        replace_data(self.source, {**data, **{name: list(values[name]) for name in self.bars}, **drawn})
        self.figure.x_range.end = max(len(processes), LEAST_ROOM) - 0.4
        every = -(-len(processes) // MOST_LABELS) or 1
        labels = {at: short(processes[at]) for at in range(0, len(processes), every)}
        if self._labels != labels:
            self._labels = labels
            self._ticker.ticks = list(labels)
            self.figure.xaxis.major_label_overrides = labels


def short(process: str) -> str:
    """`worker 12` -> `12`, `ps 0` -> `ps 0`."""
    return process.removeprefix("worker ")


def _drawn(name: str) -> str:
    return f"{name} drawn"


def bytes_columns(pairs: Sequence[tuple[float, float]]) -> dict[str, list[float]]:
    """(received, sent) for each process, as the values of a strip."""
    return {"received": [received for received, _ in pairs], "sent": [sent for _, sent in pairs]}


def traffic_strip(**more: Any) -> Strip:
    """Bytes per second: received goes up, sent down."""
    return Strip("bytes per second", {"received": 0, "sent": 1}, "0.[0]a", down=("sent",), **more)
