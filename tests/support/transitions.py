"""The table of transitions that a module's text draws, against the one by which its code goes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest

from psruntime.core.state_table import after


def check_transitions(
    doc: str | None,
    states: type[Enum],
    events: type[Enum],
    table: Mapping[Any, Any],
    results: type[Enum] | None = None,
) -> None:
    """Each pair of a state and an event is in the table, as drawn; or its cell is empty, and the event is refused.

    results: what the cells name; by default states.
    """
    rows = [line.strip("|").split("|") for line in (doc or "").splitlines() if line.startswith("| ")]
    (_, *heads), *drawn = [[cell.strip() for cell in row] for row in rows]
    assert heads == [event.name.lower() for event in events]
    assert [name for name, *_ in drawn] == [state.name for state in states]
    for (_, *cells), state in zip(drawn, states, strict=True):
        for cell, event in zip(cells, events, strict=True):
            if cell:
                assert after(table, state, event) is (results or states)[cell], f"{event} at {state}"
                continue
            assert (state, event) not in table, f"{event} at {state} is not drawn"
            with pytest.raises(ValueError, match="illegal"):
                after(table, state, event)
