"""Tables of docs/ that are made of the code are current; that of states and events names log events that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import docs
from tools import tables
from tools.states import LOGGED, READ, TABLE, Event, Fate, State


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_the_page_has_the_tables_of_the_code(page: Path) -> None:
    made = tables.BEGIN + "\n" + tables.PAGES[page]() + tables.END
    assert made in page.read_text(encoding="utf-8"), "run python -m tools.tables"


def test_the_page_can_be_read_back() -> None:
    """Each cell, by its word."""
    words = {"kept": Fate.KEPT, "**new**": Fate.NEW, "**lost**": Fate.LOST, "-": Fate.NONE}
    rows = {row[0]: row[1:-1] for row in docs.table("docs/states.md", "states")}
    assert set(rows) == {state.value for state in State}
    for state in State:
        said = [words[cell.partition(" ")[0]] for cell in rows[state.value]]
        assert said == [TABLE[state][event].fate for event in Event], state


@pytest.mark.parametrize("state", State)
def test_a_cell_that_the_event_does_not_meet_says_why(state: State) -> None:
    assert all(cell.note for cell in TABLE[state].values() if cell.fate is Fate.NONE)
    assert READ[state]


def test_the_log_events_are_those_of_the_documents() -> None:
    rows = docs.table("docs/operations.md", "log events")
    known = {event for row in rows for event in re.findall(r"`(\w+)`", row[0])}
    assert set(LOGGED) == set(Event) and {event for event in LOGGED.values() if event} <= known
