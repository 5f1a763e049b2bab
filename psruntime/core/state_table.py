"""Tables of states and events: each is drawn in the text of its module, and a test compares the two."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


def after(table: Mapping[tuple[State, Event], State], state: State, event: Event) -> State:
    """The next state.  Raises ValueError: the event is illegal in this state."""
    if (state, event) not in table:
        raise ValueError(f"illegal event {event.name} in {type(state).__qualname__} {state.name}")
    return table[state, event]
