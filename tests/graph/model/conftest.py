"""The data of models that are made here."""

from __future__ import annotations

import pytest

from tests.graph.model.aggregated_models import Batches


@pytest.fixture(scope="module")
def batches() -> Batches:
    return Batches(12)
