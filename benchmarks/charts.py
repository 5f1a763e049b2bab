"""Draws a figure into a PNG: the same file for the same figure.  Opaque, so that it can be read on a dark page too."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks.panels import Figure, Panel, Value

WIDTH = 8.5  # inches
DPI = 120
COLOURS = ("#1f5fa8", "#b8b8b8", "#e08214")  # also told apart without colour: dark, light, between
DARK = "#222222"
LETTERS = 105  # of a title's line
LABEL_LETTERS = 38
STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": DARK,
    "text.color": DARK,
    "axes.labelcolor": DARK,
    "xtick.color": DARK,
    "ytick.color": DARK,
    "savefig.facecolor": "white",
    "figure.facecolor": "white",
}


def draw(figure: Figure, path: Path) -> None:
    """Raises OSError: the file cannot be written."""
    title = textwrap.fill(figure.title, LETTERS)
    heights = [height_of(panel) for panel in figure.panels]
    margin = 0.35 + 0.17 * title.count("\n")
    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=(WIDTH, sum(heights) + margin + 0.3), layout="constrained")
        canvas.suptitle(title, fontsize=10, ha="left", x=0.01)
        axes = canvas.subplots(len(heights), squeeze=False, height_ratios=heights)
        for panel, axis in zip(figure.panels, axes[:, 0], strict=True):
            (lines if panel.along else bars)(panel, axis)
        canvas.supxlabel(figure.footer, fontsize=7.5, ha="left", x=0.01)
        canvas.savefig(path, format="png", dpi=DPI, metadata={"Software": None})


def height_of(panel: Panel) -> float:
    """Inches."""
    if panel.along:
        return 3.2
    return 0.9 + sum(max(0.2 + 0.2 * len(panel.series), 0.2 * lines_in(row.label)) for row in panel.rows)


def lines_in(label: str) -> int:
    return label_text(label).count("\n") + 1


def label_text(label: str) -> str:
    return "\n".join(textwrap.fill(line, LABEL_LETTERS) for line in label.split("\n"))


def bars(panel: Panel, axis: Any) -> None:
    """A row of bars for each workload, the first at the top."""
    series = panel.series
    height = 0.8 / len(series)
    ends = [0.0] * len(panel.rows)
    for number, name in enumerate(series):
        there = [(place, row.values[name]) for place, row in enumerate(panel.rows) if name in row.values]
        values = [value for _, value in there]
        axis.barh(
            [place + (number - (len(series) - 1) / 2) * height for place, _ in there],
            [value.value for value in values],
            0.92 * height,
            xerr=spread_of(values),
            error_kw={"ecolor": DARK, "elinewidth": 1.0, "capsize": 2.0},
            color=COLOURS[number % len(COLOURS)],
            label=name,
        )
        for place, value in there:
            ends[place] = max(ends[place], value.high)
    for place, row in enumerate(panel.rows):
        if row.due is not None:
            label = "due" if place == 0 else None
            axis.vlines(row.due, place - 0.42, place + 0.42, colors="black", linestyles="dotted", label=label)
        axis.annotate(
            row.note, (max(ends[place], row.due or 0.0), place), (5, 0), textcoords="offset points", va="center",
            fontweight="bold",
        )  # fmt: skip
    axis.set_yticks(range(len(panel.rows)), [label_text(row.label) for row in panel.rows])
    axis.set_ylim(len(panel.rows) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel(f"{panel.unit}{', logarithmic' if panel.is_log else ''}")
    scaled(axis, axis.xaxis, axis.set_xscale, panel.is_log)
    axis.set_xmargin(0.1)
    legend(axis)


def lines(panel: Panel, axis: Any) -> None:
    """A line for each series, over the numbers that are the rows' labels."""
    for number, name in enumerate(panel.series):
        there = [(float(row.label), row.values[name]) for row in panel.rows if name in row.values]
        values = [value for _, value in there]
        axis.errorbar(
            [at for at, _ in there],
            [value.value for value in values],
            yerr=spread_of(values),
            color=COLOURS[number % len(COLOURS)],
            marker="os^"[number % 3],
            linewidth=2.0,
            elinewidth=1.0,
            ecolor=DARK,
            capsize=2.0,
            label=name,
        )
    for row in panel.rows:
        top = max(value.high for value in row.values.values())
        axis.annotate(
            row.note, (float(row.label), top), (0, 6), textcoords="offset points", ha="center", fontweight="bold"
        )
    axis.set_xticks([float(row.label) for row in panel.rows], [row.label for row in panel.rows])
    axis.set_xlabel(panel.along)
    axis.set_ylabel(f"{panel.unit}{', logarithmic' if panel.is_log else ''}")
    scaled(axis, axis.yaxis, axis.set_yscale, panel.is_log)
    axis.margins(y=0.12)
    if not panel.is_log:
        axis.set_ylim(bottom=0)
    legend(axis)


def spread_of(values: list[Value]) -> list[list[float]] | None:
    """Below and above each; None if there was but one run of each."""
    spread = [[each.value - each.low for each in values], [each.high - each.value for each in values]]
    return spread if any(map(any, spread)) else None


def scaled(axis: Any, of: Any, set_scale: Any, is_log: bool) -> None:
    """The ticks of logarithmic ones are plain numbers."""
    axis.set_axisbelow(True)
    of.grid(True, color="#e4e4e4", linewidth=0.8)
    if not is_log:
        return
    set_scale("log")
    of.set_major_locator(LogLocator(base=10.0, subs=(1.0, 3.0)))
    of.set_minor_locator(NullLocator())
    of.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def legend(axis: Any) -> None:
    handles, names = axis.get_legend_handles_labels()
    axis.legend(handles, names, ncols=len(names), loc="lower left", bbox_to_anchor=(0.0, 1.0), frameon=False)
