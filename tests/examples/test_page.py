"""docs/recommenders.md shows what the plan of its model is, and reckons with the numbers that the model has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from psruntime.examples.criteo import KAGGLE_IDS
from tests.support import docs
from tests.support.docs import ROOT

PAGE = "docs/recommenders.md"


@pytest.mark.long
def test_the_plan_is_the_one_that_the_page_shows(tmp_path: Path) -> None:
    model = docs.block(PAGE, "my_dlrm.py")
    (tmp_path / model.file).write_text(model.text)
    found = docs.blocks(ROOT / PAGE)
    at = next(i for i, block in enumerate(found) if block.text.startswith("psruntime plan"))
    _, *words = found[at].commands[0]
    environment = {**os.environ, "COLUMNS": "120", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "psruntime", *words]
    shown = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0, shown.stderr
    assert stripped(shown.stdout) == stripped(found[at + 1].text)


def stripped(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_the_page_reckons_right() -> None:
    rows = sum(min(2 * ids + 1, 4_000_000) for ids in KAGGLE_IDS)
    text = (ROOT / PAGE).read_text().replace("\n", " ")
    assert f"{sum(KAGGLE_IDS) / 1e6:.1f} million different values" in text
    assert f"{rows / 1e6:.1f} million rows in all" in text
    assert f"all rows {rows * 128 / 1e9:.1f} GB" in text and f"each of two ps holds {rows * 64 / 1e9:.2f} GB" in text
