"""Tables of a page, which draw only the rows in sight, so hundreds cost as much as a few; and lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

ROW_HEIGHT, HEAD_HEIGHT = 26, 32  # pixels
MOST_ROWS = 14  # that are seen at a time; one scrolls to the others
MOST_LINES = 200


@dataclass(frozen=True)
class Column:
    """width: pixels at least.  words: whether it has texts, aligned left, instead of numbers, aligned right."""

    name: str
    width: int = 80
    words: bool = False


class Table:
    """One table, sorted by a click on a head.  Numbers may be NaN, which is shown as -; format: of numbers by name."""

    def __init__(self, columns: Sequence[Column], formats: Mapping[str, str] | None = None) -> None:
        from bokeh.models import ColumnDataSource, DataTable

        self.columns = columns
        self._shown = 0  # how often its rows have changed
        numbers = [i for i, each in enumerate(columns, 1) if i > 1 and not each.words]
        right = "".join(f".slick-header-column:nth-child({i}) .slick-column-name {{ float: right }}\n" for i in numbers)
        self.source = ColumnDataSource({column.name: [] for column in columns})
        self.model = DataTable(
            source=self.source, columns=[_column(each, (formats or {}).get(each.name, "0,0"), "right" if i else "left")
                for i, each in enumerate(columns)],
            sizing_mode="stretch_width", height=_height(1), row_height=ROW_HEIGHT, index_position=None,
            autosize_mode="none", selectable=False, reorderable=False, stylesheets=[_STYLE + right],
        )  # fmt: skip

    def show(self, rows: Sequence[Sequence[Any]]) -> None:
        """A value for each column in every row."""
        names = [column.name for column in self.columns]
        by_column = zip(*rows, strict=True) if rows else ([] for _ in names)
        data = {name: list(values) for name, values in zip(names, by_column, strict=True)}
        if replace_data(self.source, data):
            self._shown += 1
            self.model.view.tags = [self._shown]  # a grid is redrawn when its view changes, not when its data do
        height = _height(len(rows))
        if self.model.height != height:
            self.model.height = height


def replace_data(source: Any, data: dict[str, list[Any]]) -> bool:
    """Replaces the data of a source; with as many rows as before, only the changes are sent.

    Returns whether anything has changed.
    """
    patches = _patches(source.data, data)
    if patches is None:
        source.data = data
    elif patches:
        source.patch(patches)
    return patches != {}


def _patches(before: Mapping[str, Any], now: Mapping[str, list[Any]]) -> dict[str, list[tuple[int, Any]]] | None:
    """The changes in the form of Bokeh's sources; None if the number of rows has changed."""
    if any(len(before[name]) != len(values) for name, values in now.items()):
        return None
    changes = {name: _changes(before[name], values) for name, values in now.items()}
    return {name: patch for name, patch in changes.items() if patch}


def _changes(before: Sequence[Any], now: Sequence[Any]) -> list[tuple[int, Any]]:
    pairs = enumerate(zip(before, now, strict=True))
    return [(i, new) for i, (old, new) in pairs if old != new and not (old != old and new != new)]  # NaN is not NaN


def _height(rows: int) -> int:
    return HEAD_HEIGHT + ROW_HEIGHT * min(max(rows, 1), MOST_ROWS) + 6


def _column(column: Column, number: str, align: str) -> Any:
    from bokeh.models import NumberFormatter, StringFormatter, TableColumn

    formatter = (
        StringFormatter(nan_format="-")
        if column.words
        else NumberFormatter(format=number, nan_format="-", text_align=align)
    )
    return TableColumn(field=column.name, title=column.name, width=column.width, formatter=formatter)


_STYLE = """
:host { border: 0; background: transparent; color: var(--text); font-size: 13px }
.slick-header, .slick-header-columns { background: transparent !important; border: 0 }
.slick-header-column, .slick-header-column.ui-state-default { background: transparent !important; color: var(--soft);
  border: 0 !important; border-bottom: 1px solid var(--line) !important; font-weight: 600 }
.slick-row, .slick-row.odd, .slick-row.even, .slick-row:hover { background: transparent !important; color: var(--text) }
.slick-cell, .slick-cell.selected { border: 0 !important; border-bottom: 1px solid var(--line) !important;
  background: transparent !important; color: var(--text); font-variant-numeric: tabular-nums; line-height: 22px }
.slick-viewport, .slick-pane, .grid-canvas { background: transparent !important }
"""


class Lines:
    """A short table of text, for reasons, which may be long: lines break where the screen ends.

    The first MOST_LINES rows are shown; texts of members are shown as they are, without markup.
    """

    def __init__(self, *columns: str, empty: str = "nothing") -> None:
        from bokeh.models import Div

        self._columns, self._empty = columns, empty
        self.model = Div(sizing_mode="stretch_width", stylesheets=[_LINES_STYLE])

    def show(self, rows: Sequence[Sequence[object]]) -> None:
        """A value for each column in every row."""
        text = self._html(rows[:MOST_LINES]) if rows else f"<p>{escape(self._empty)}</p>"
        if text != self.model.text:
            self.model.text = text

    def _html(self, rows: Sequence[Sequence[object]]) -> str:
        head = "".join(f"<th>{escape(column)}</th>" for column in self._columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_LINES_STYLE = """
:host { color: var(--text); font-size: 13px; max-height: 640px; overflow-y: auto } p { margin: 0; color: var(--soft) }
table { border-collapse: collapse; width: 100% }
th { color: var(--soft); font-weight: 600 }
th, td { text-align: left; vertical-align: top; padding: 4px 10px 4px 0; overflow-wrap: anywhere }
th:not(:last-child), td:not(:last-child) { overflow-wrap: normal }
tbody tr { border-top: 1px solid var(--line) } td:first-child { font-variant-numeric: tabular-nums }
"""
