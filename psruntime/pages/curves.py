"""Curves over the last minutes: a figure that is given each sample once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from psruntime.live.history import NAN, SAMPLES, History, Sample
from psruntime.pages.drawing import GREY, colour_of, figure

HEIGHT = 240
COUNTS = "0,0"  # format of whole numbers
Value = Callable[[Sample], float]


class Curves:
    """A figure with one line for each (name, value); band: (least, most) that are filled between."""

    def __init__(
        self,
        y_label: str,
        lines: Sequence[tuple[str, Value]],
        band: tuple[Value, Value] | None = None,
        number: str = "0.[00]a",
        from_zero: bool = True,
        as_it_is: bool = False,
    ) -> None:
        """as_it_is: the numbers of the y axis have all their digits, however small they are."""
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
        """Adds the samples that are new; begins anew with another job.  Lines end where the coordinator was away."""
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
    """Those after `seen_s`."""
    found: list[Sample] = []
    for sample in reversed(history.samples):
        if sample.at_s <= seen_s:
            break
        found.append(sample)
    return found[::-1]


def milliseconds(sample: Sample) -> float:
    """Of its time, since 1970, as this machine's clock shows it: a browser draws times as they are."""
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
    """Above the figure, in the colours of the page."""
    for legend in made.legend:
        legend.background_fill_alpha = 0.0
        legend.border_line_alpha = 0.0
        legend.label_text_color = GREY
        legend.label_text_font_size = "12px"
        legend.orientation = "horizontal"
        legend.padding, legend.margin, legend.spacing = 0, 4, 12
        made.add_layout(legend, "above")
