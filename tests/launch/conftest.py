"""What the tests of scripts that start jobs share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def sigint_as_in_a_terminal() -> Iterator[None]:
    """What a shell has started in the background ignores SIGINT, and bash then takes no trap of it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
