"""Several trainings of one model compared: the numbers of each from its record, and their page, one HTML file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import Any

from psruntime.core.accounting.accounts import APPLIED_NAME, CONTRIBUTED
from psruntime.dashboard.drawing import STYLE, colour_of, figure
from psruntime.errors import UsageError
from psruntime.observe.records import Record, standing

POINTS = 60  # of a curve, at most

Point = tuple[float, float]


@dataclass(frozen=True)
class Training:
    """The numbers of one training.

    steps: global steps, updates or in mode sync rounds.  seconds: from the first update to the last, of all workers.
    examples: in the updates that were not undone.  dropped: updates that were refused, on one bucket at least.
    loss_by_step, loss_by_time: points (global step or second, median loss of the updates about there).
    staleness: versions -> share of the updates.  waited: worker index -> share of its time that it waited for others.
    held_out: metric -> its value at the end.
    """

    name: str
    steps: int
    seconds: float
    examples: int
    dropped: int
    loss_by_step: list[Point]
    loss_by_time: list[Point]
    staleness: dict[int, float]
    waited: dict[int, float]
    held_out: Mapping[str, float]

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.seconds if self.seconds > 0 else 0.0

    @property
    def mean_staleness(self) -> float:
        return sum(staleness * share for staleness, share in self.staleness.items())


def best_of(trainings: Sequence[Training]) -> Training | None:
    """The training that ended with the least held-out loss; None if none has it."""
    measured = [each for each in trainings if math.isfinite(each.held_out.get("loss", math.nan))]
    return min(measured, key=lambda each: each.held_out["loss"], default=None)


def training_of(name: str, records: Sequence[Record], held_out: Mapping[str, float]) -> Training:
    """The numbers of a training.

    Raises:
        UsageError: nothing was trained.
    """
    stands = standing(records)
    if not stands:
        raise UsageError(f"the record of '{name}' has no update; give more --train-steps")
    began_s, ended_s = min(r.time for r in records), max(r.time for r in records)
    rounds = {r.global_step for r in stands if r.outcome == CONTRIBUTED}
    stale = Counter(r.staleness for r in stands if r.staleness is not None)
    waited: dict[int, float] = {}
    for record in sorted(records, key=lambda r: r.time):  # before its first update a worker waits for the job to start
        waited[record.worker] = waited[record.worker] + record.waited_s if record.worker in waited else 0.0
    seconds = ended_s - began_s
    return Training(
        name=name,
        steps=len(rounds) + sum(r.outcome != CONTRIBUTED for r in stands),
        seconds=seconds,
        examples=sum(r.examples for r in stands),
        dropped=sum(r.outcome not in (APPLIED_NAME, CONTRIBUTED) for r in records),
        loss_by_step=curve((r.global_step, r.loss) for r in stands if r.loss is not None),
        loss_by_time=curve((r.time - began_s, r.loss) for r in stands if r.loss is not None),
        staleness={staleness: count / stale.total() for staleness, count in sorted(stale.items())},
        waited={worker: min(1.0, s / seconds) if seconds > 0 else 0.0 for worker, s in sorted(waited.items())},
        held_out=held_out,
    )


def curve(points: Iterable[Point]) -> list[Point]:
    """At most POINTS points, each the median of as many of the given ones, in their order along the first axis.

    The mean would show a single very late update, whose loss is from long before, as a peak.
    """
    ordered = sorted(points)
    each = -(-len(ordered) // POINTS) or 1
    parts = [ordered[i : i + each] for i in range(0, len(ordered), each)]
    return [(median(x for x, _ in part), median(y for _, y in part)) for part in parts]


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


COLUMNS = ("mode", "global steps", "time", "steps/s", "examples", "refused", "mean staleness")
CHARTS = {
    "steps": ("Loss over steps", "median of the batches; a step of mode sync is a round"),
    "time": ("Loss over time", "the same, by the clock"),
    "staleness": ("Staleness", "share of the updates, by how many others came between pull and update"),
    "speed": ("Steps per second", "updates, in mode sync rounds"),
    "waiting": ("Waiting", "share of its time that a worker waited for others"),
}
_STYLE = f"""{STYLE}
.modes {{ display: flex; flex-wrap: wrap; gap: 6px 20px; margin: 14px 0 18px; padding: 0; list-style: none }}
.grid .card:last-child {{ grid-column: 1 / -1 }}
.table {{ overflow-x: auto }} table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }}
th {{ font-weight: 600; color: var(--soft) }} th, td {{ text-align: right; padding: 6px 10px; white-space: nowrap }}
th:first-child, td:first-child {{ text-align: left; white-space: normal; min-width: 9em }}
tbody tr {{ border-top: 1px solid var(--line) }}
"""


def page_of(trainings: Sequence[Training], title: str, how: str) -> str:
    """The HTML of the page.  how: the command and its settings, in a line."""
    script, charts, head = charts_of(trainings)
    chips = "".join(f"<li>{_chip(number)}{escape(each.name)}</li>" for number, each in enumerate(trainings))
    cards = "".join(
        f'<section class="card"><h2>{CHARTS[name][0]}</h2><p>{CHARTS[name][1]}</p>{charts[name]}</section>'
        for name in CHARTS
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{_STYLE}</style>\n{head}\n</head><body><h1>{escape(title)}</h1><p>{escape(how)}</p>"
        f'<ul class="modes">{chips}</ul><section class="card table">{_table(trainings)}</section>'
        f'<div class="grid">{cards}</div>\n{script}\n</body></html>\n'
    )


def rows_of(trainings: Sequence[Training]) -> tuple[list[str], list[list[str]]]:
    """(columns, a row for each training): numbers, and the metrics on held-out data."""
    metrics = list(dict.fromkeys(metric for each in trainings for metric in each.held_out))
    rows = []
    for t in trainings:
        measured = [f"{t.held_out[metric]:.4f}" if metric in t.held_out else "-" for metric in metrics]
        rows.append([
            t.name, f"{t.steps:,}", f"{t.seconds:.1f} s", f"{t.steps_per_s:,.0f}", f"{t.examples:,}",
            str(t.dropped), f"{t.mean_staleness:.1f}", *measured,
        ])  # fmt: skip
    return [*COLUMNS, *(f"held-out {metric}" for metric in metrics)], rows


def _table(trainings: Sequence[Training]) -> str:
    columns, rows = rows_of(trainings)
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{_chip(n) if i == 0 else ''}{escape(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        for n, row in enumerate(rows)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _chip(number: int) -> str:
    return f'<span class="chip" style="background:{colour_of(number)}"></span>'
