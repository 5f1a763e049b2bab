"""One zygote for all cluster tests of a run; the real commands of one test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Zygote
from tests.support.commands import Commands


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    left = zygote.running()
    zygote.close()
    assert not left, f"processes that no test has ended: {left}"


@pytest.fixture(autouse=True)
def graphs_as_built(request: pytest.FixtureRequest) -> None:
    """Unless a test has the marker `optimised`, as those have that compare numbers."""
    if "zygote" in request.fixturenames:
        request.getfixturevalue("zygote").as_built = not request.node.get_closest_marker("optimised")


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(tmp_path)
    yield commands
    left = commands.running()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
