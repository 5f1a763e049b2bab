"""What the tests of exports share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.served import Served


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "a_served_model", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a module of the same size in the same second is another
    return Served(tmp_path)
