"""Tables of the terminal, all in one style."""

from __future__ import annotations

from rich.table import Table

LEFT = ("address", "waiting for", "variables", "how", "why", "what", "who")  # columns of words


def table(*columns: str) -> Table:
    """A table without rows yet; the first column is the row's name."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        made.add_column(column, justify="left" if i == 0 or column in LEFT else "right")
    return made


def bytes_text(count: float) -> str:
    """A number of bytes with a decimal unit: 12.3 MB."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
