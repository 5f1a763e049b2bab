"""Strips: one narrow bar for each process, beside each other, so that hundreds fit; its numbers are in the tooltip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psruntime.pages.curves import COUNTS, soften_legend
from psruntime.pages.drawing import colour_of, figure
from psruntime.pages.tables import replace_data

HEIGHT = 220
LEAST_ROOM = 6  # bars for which there is room at least: two would be walls
MOST_LABELS = 8  # processes that have a label of their own on the axis
BAR = 0.85  # of the room that a bar has


class Strip:
    """Bars for each process, drawn over each other in the order of `bars` (name -> colour's number), or on top of each
    other if `stacked`; of those in `down` the values go down.
    """

    def __init__(
        self,
        y_label: str,
        bars: Mapping[str, int],
        number: str,
        down: Sequence[str] = (),
        stacked: bool = False,
        height: int = HEIGHT,
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
