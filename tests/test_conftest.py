"""What conftest.py says at the end of a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import tests.conftest
pytest_plugins = ["tests.conftest"]
tests.conftest.SLOW_S = 0.1
"""
TESTS = """
import time
import pytest

def compute():
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass

def test_that_computes():
    compute()

@pytest.fixture
def computed():
    compute()

def test_whose_fixture_computes(computed):
    pass

@pytest.mark.long
def test_that_is_long():
    compute()

def test_that_waits():
    time.sleep(0.2)
"""


@pytest.mark.long
@pytest.mark.parametrize("processes", [0, 2])
def test_slow_tests_that_are_not_long_are_named(processes: int, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    long: as everywhere\n")
    (tmp_path / "test_any.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", f"--numprocesses={processes}", "-p", "no:cacheprovider", str(tmp_path)]
    ended = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith("slow tests"))
    said, _, names = line.partition(": ")
    assert said == "slow tests, to be cheaper or long"
    assert set(names.split(", ")) == {"test_any.py::test_that_computes", "test_any.py::test_whose_fixture_computes"}
