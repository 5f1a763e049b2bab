"""The larger examples train on a cluster."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import ROOT, Zygote, cluster

pytestmark = [pytest.mark.cluster, pytest.mark.optimised]


def train(zygote: Zygote, folder: Path, example: str, batch_size: int, **job: Any) -> dict[str, float]:
    """What the chief prints of the held-out data after the training with 2 ps and 2 workers."""
    settings = {"ps": 2, "min_workers": 2, "checkpoint_dir": folder / "checkpoints", **job}
    with cluster(zygote, folder, **settings) as started:
        flags = [f"--model=psruntime.examples.{example}", f"--batch-size={batch_size}"]
        workers = [started.start_worker(index, *flags) for index in range(2)]
        assert set(started.wait_all(280).values()) == {0}
        assert not [worker for worker in workers if " unmoved " in worker.text]
        (said,) = [line for w in workers for line in w.text.splitlines() if line.startswith("held out")]
        values = [pair.split() for pair in said.split(": ", 1)[1].split(", ")]
        return {name: float(value) for name, value in values}


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_mobilenet_with_batch_norm(mode: str, zygote: Zygote, tmp_path: Path) -> None:
    """What the chief evaluates with its own moving averages is what its checkpoint gives in plain TensorFlow."""
    said = train(zygote, tmp_path, "mobilenet_v2", 8, mode=mode, train_steps=20)
    assert math.isfinite(said["loss"])
    command = [sys.executable, "-m", "tests.support.plain_evaluation", "psruntime.examples.mobilenet_v2"]
    command += [str(tmp_path / "checkpoints"), "8"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=True)
    plain = json.loads(done.stdout)
    assert plain["moved"] == plain["fixed"] == 104
    assert said["loss"] == pytest.approx(plain["metrics"]["loss"], abs=2e-4)
    assert said["accuracy"] == pytest.approx(plain["metrics"]["accuracy"], abs=1e-4)


@pytest.mark.long
@pytest.mark.timeout(200)
def test_wide_and_deep_with_two_optimizers(zygote: Zygote, tmp_path: Path) -> None:
    said = train(zygote, tmp_path, "wide_deep", 128, mode="async", train_steps=400)
    assert said["auc"] > 0.6, "0.5 is chance"


@pytest.mark.long
@pytest.mark.timeout(200)
def test_dlrm_comes_near_to_what_can_be_predicted(zygote: Zygote, tmp_path: Path) -> None:
    said = train(zygote, tmp_path, "dlrm", 256, mode="async", train_steps=500)
    assert 0.72 < said["auc"] < 0.85, "tests/examples/test_criteo.py has the limit"


@pytest.mark.long
@pytest.mark.timeout(200)
def test_two_towers_retrieve_more_than_what_is_popular(zygote: Zygote, tmp_path: Path) -> None:
    said = train(zygote, tmp_path, "two_tower", 256, mode="async", train_steps=1000)
    assert 0.24 < said["recall_at_10"] < 0.34, "tests/examples/test_two_tower.py has both limits"
