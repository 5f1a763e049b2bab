"""Tables of Markdown files as data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def rows_of(path: Path, columns: Sequence[str]) -> list[list[str]]:
    """The rows of the only table in a file, which must have these columns."""
    lines = [line for line in path.read_text().splitlines() if line.startswith("|")]
    request, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert request == list(columns), request
    return rows
