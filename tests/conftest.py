"""Where tests run when several processes run them: those that start clusters one after the other, in one process."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They take all cores; two clusters at a time would measure each other."""
    for item in items:
        if item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.xdist_group("cluster"))
