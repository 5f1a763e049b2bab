"""What conftest.py plays, and what it says at the end of a run."""

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
EXAMPLES = """
from hypothesis import settings

HERE = settings().max_examples

def test_any():
    print(f"{HERE} {settings().max_examples} of test_{__name__[-1]}")
"""


@pytest.mark.long
def test_one_share_of_the_files_plays_all_examples(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    files = [f"test_{name}" for name in "abcdefgh"]
    for name in files:
        (tmp_path / f"{name}.py").write_text(EXAMPLES)
    command = [sys.executable, "-m", "pytest", "-n", "0", "-s", "-p", "no:cacheprovider", str(tmp_path)]
    played = []
    for share in ("0/2", "1/2", "2/2"):
        ended = subprocess.run(
            [*command, "--share", share], cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=120
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        played.append({name for name in files if f"100 100 of {name}" in ended.stdout})
        quick = {name for name in files if f"20 20 of {name}" in ended.stdout}
        assert quick == set(files) - played[-1]
    none, one, other = played
    assert not none and one and other and not one & other and one | other == set(files)


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
