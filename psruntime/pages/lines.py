"""Short tables of text, whose lines break where the screen ends: for reasons, which may be long."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

MOST_LINES = 200


class Lines:
    """The first MOST_LINES rows are shown; what members said stands there as it is, without markup."""

    def __init__(self, *columns: str, empty: str = "nothing") -> None:
        from bokeh.models import Div

        self._columns, self._empty = columns, empty
        self.model = Div(sizing_mode="stretch_width", stylesheets=[_STYLE])

    def show(self, rows: Sequence[Sequence[object]]) -> None:
        """A value for each column in every row."""
        text = self._html(rows[:MOST_LINES]) if rows else f"<p>{escape(self._empty)}</p>"
        if text != self.model.text:
            self.model.text = text

    def _html(self, rows: Sequence[Sequence[object]]) -> str:
        head = "".join(f"<th>{escape(column)}</th>" for column in self._columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_STYLE = """
:host { color: var(--text); font-size: 13px; max-height: 640px; overflow-y: auto } p { margin: 0; color: var(--soft) }
table { border-collapse: collapse; width: 100% }
th { color: var(--soft); font-weight: 600 }
th, td { text-align: left; vertical-align: top; padding: 4px 10px 4px 0; overflow-wrap: anywhere }
th:not(:last-child), td:not(:last-child) { overflow-wrap: normal }
tbody tr { border-top: 1px solid var(--line) } td:first-child { font-variant-numeric: tabular-nums }
"""
