"""psruntime with each older TensorFlow that pyproject.toml allows, in an environment that pip makes for it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.support import docs
from tests.support.docs import ROOT

UPGRADING = ROOT / "docs/upgrading.md"
WRITTEN_FOR = "2.20.0"  # the version in the commands of the page
MODEL = "--model=psruntime.examples.digits"


def ran(python: str, *words: str) -> str:
    """The last line that a module prints, run by this Python with psruntime as it is here."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([python, "-m", *words], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def environment_with(version: str, folder: Path) -> str:
    """Python of an environment with tensorflow-cpu of a minor version, as the page has it; skips if pip finds none."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin/python")
    (block,) = (block for block in docs.blocks(UPGRADING) if block.check == "install")
    commands = [line.replace(WRITTEN_FOR, f"{version}.0") for line in block.text.splitlines()]
    for words in map(shlex.split, [*commands, "pip install scikit-learn"]):
        found = [word for word in words[2:] if word != "."]
        command = [python, "-m", "pip", "install", "--quiet", "--no-compile", *found]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if "No matching distribution found" in done.stderr:
            pytest.skip(f"pip finds none here: {done.stderr.splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
    return python


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", ["2.18", "2.19", "2.20"])
def test_digits_train_in_sync_and_the_newest_continues_from_the_checkpoint(version: str, tmp_path: Path) -> None:
    older = environment_with(version, tmp_path / "environment")
    folder = f"--checkpoint-dir={tmp_path / 'checkpoints'}"
    train = ["psruntime", "run", MODEL, "--mode=sync", "--ps=2", "--workers=2", folder]
    ended = ran(older, *train, "--train-steps=60", f"--log-dir={tmp_path / 'older'}")
    assert "held out, at global step 60" in ended
    measured = ran(older, "psruntime", "evaluate", MODEL, folder)
    assert ended.endswith(measured)
    assert ran(sys.executable, "psruntime", "evaluate", MODEL, folder) == measured
    assert "held out, at global step 80" in ran(
        sys.executable, *train, "--train-steps=80", f"--log-dir={tmp_path / 'newest'}"
    )
