"""The charts of a comparison: their code and data are in the page, which needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psruntime.comparison.summary import Point, Training
from psruntime.pages.drawing import colour_of, figure

BINS = (0, 1, 2, 3, 4, 8, 16, 32)  # versions at which a bar of the histogram begins
SPREAD = 0.8  # of a group of bars


def charts_of(trainings: Sequence[Training]) -> tuple[str, dict[str, str], str]:
    """(scripts for the page's end, chart -> its HTML, content for the head of the page)."""
    from bokeh.embed import components
    from bokeh.resources import INLINE

    figures = {
        "steps": _curves("global step", [(each.name, each.loss_by_step) for each in trainings]),
        "time": _curves("seconds since the first update", [(each.name, each.loss_by_time) for each in trainings]),
        "staleness": _staleness(trainings),
        "speed": _speed(trainings),
        "waiting": _waiting(trainings),
    }
    script, html = components(figures)
    return script, dict(html), INLINE.render()


def _curves(x_label: str, curves: list[tuple[str, list[Point]]]) -> Any:
    from bokeh.models import HoverTool

    positive = all(y > 0 for _, points in curves for _, y in points)
    made = figure(x_axis_label=x_label, y_axis_label="loss", y_axis_type="log" if positive else "linear")
    for number, (name, points) in enumerate(curves):
        data = {"x": [x for x, _ in points], "y": [y for _, y in points], "mode": [name] * len(points)}
        made.line("x", "y", source=data, line_width=2, line_color=colour_of(number))
    made.add_tools(HoverTool(tooltips=[("mode", "@mode"), (x_label, "@x{0.[0]}"), ("loss", "@y{0.0000}")]))
    return made


def _staleness(trainings: Sequence[Training]) -> Any:
    """Bars of all modes beside each other; the last bins are wider."""
    most = max((staleness for each in trainings for staleness in each.staleness), default=0)
    begins = [begin for begin in BINS if begin <= most] or [0]
    ends = [*(begin - 1 for begin in begins[1:]), max(most, begins[-1])]
    labels = [f"{begin}" if begin == end else f"{begin}-{end}" for begin, end in zip(begins, ends, strict=True)]
    labels[-1] = labels[-1] if begins[-1] == most else f"{begins[-1]}+"
    shares = [
        [sum(s for at, s in each.staleness.items() if b <= at <= e) for b, e in zip(begins, ends, strict=True)]
        for each in trainings
    ]
    return _bars(labels, trainings, shares, "staleness, versions", "updates", "0%")


def _waiting(trainings: Sequence[Training]) -> Any:
    workers = sorted({worker for each in trainings for worker in each.waited})
    shares = [[each.waited.get(worker, 0.0) for worker in workers] for each in trainings]
    return _bars([f"worker {worker}" for worker in workers], trainings, shares, "", "time spent waiting", "0%")


def _speed(trainings: Sequence[Training]) -> Any:
    values = [[each.steps_per_s] for each in trainings]
    return _bars(["all workers"], trainings, values, "", "global steps per second", "0,0.[0]")


def _bars(
    groups: list[str], trainings: Sequence[Training], values: list[list[float]], x: str, y: str, number: str
) -> Any:
    """A group of bars for each entry of `groups`, with one bar for each training; values [trainings][groups]."""
    from bokeh.models import FactorRange, HoverTool, NumeralTickFormatter
    from bokeh.transform import dodge

    made = figure(x_range=FactorRange(*groups), x_axis_label=x or None, y_axis_label=y)
    width = SPREAD / len(trainings)
    for place, (each, heights) in enumerate(zip(trainings, values, strict=True)):
        data = {"group": groups, "value": heights, "mode": [each.name] * len(groups)}
        shift = (place - (len(trainings) - 1) / 2) * width
        made.vbar(
            dodge("group", shift, range=made.x_range), top="value", width=0.9 * width, source=data,
            fill_color=colour_of(place), line_color=None,
        )  # fmt: skip
    made.y_range.start = 0
    made.xgrid.grid_line_color = None
    made.yaxis.formatter = NumeralTickFormatter(format=number)
    tooltips = [("mode", "@mode"), (x or "of", "@group"), (y, f"@value{{{number}}}")]
    made.add_tools(HoverTool(tooltips=tooltips))
    return made
