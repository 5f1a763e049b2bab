"""One zygote for all cluster tests of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()
