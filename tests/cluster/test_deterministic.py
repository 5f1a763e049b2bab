"""A job with deterministic operations, with which TensorFlow refuses random ones without a seed, and its own clock."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_the_digits_are_trained(tmp_path: Path, mode: str) -> None:
    """Its layers draw their initial values without a seed."""
    words = ["--model", "psruntime.examples.digits", "--mode", mode, "--train-steps", "20", "--log-dir", str(tmp_path)]
    environment = {**os.environ, "TF_DETERMINISTIC_OPS": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "psruntime.run", *words], capture_output=True, text=True, env=environment, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "held out, at global step 20" in ran.stdout
