"""A cluster that the tests of one module share."""

from __future__ import annotations

import pytest

from tests.support.local_cluster import LocalCluster


@pytest.fixture(scope="module")
def shared() -> LocalCluster:
    return LocalCluster(2)


@pytest.fixture
def cluster(shared: LocalCluster) -> LocalCluster:
    """Two empty ps."""
    shared.forget(0)
    shared.forget(1)
    return shared
