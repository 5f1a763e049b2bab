"""A sample of the cells of the table of outcomes; `make chaos` runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.cells import Cell
from tests.chaos.outcomes import read_table
from tests.support.cluster import Zygote

pytestmark = pytest.mark.cluster

OUTCOMES = read_table()
SAMPLE = [  # every victim, fault and mode, and every kind of end
    "ps 0 - kill, restart - bounded",
    "ps 0 - lost - sync",
    "ps 1 - pause - sync",
    "ps 1 - lost - async",
    "chief - kill, restart - sync",
    "worker - pause - bounded",
]


@pytest.mark.long
@pytest.mark.parametrize("cell", SAMPLE, ids=str)
def test_a_cell_has_the_outcome_that_is_promised(cell: str, zygote: Zygote, tmp_path: Path) -> None:
    Cell(OUTCOMES[cell], zygote, tmp_path).run()
