"""Real images, in each mode, against one plain process that sees as many examples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from tests.support.cluster import ROOT, Zygote, cluster
from tests.support.selection import long_but

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.optimised]

MODEL = "psruntime.examples.fashion_mnist"
STEPS, BATCH = 600, 64
WITHIN = 0.015
# The accuracy of one run on 615 held-out images has a standard deviation of 0.007 over the seeds, be it ours
# or plain; the difference of these two means has one of 0.004.
RUNS, PLAIN_RUNS = 3, 8


@pytest.fixture(scope="module")
def data_dir() -> str:
    root = os.environ.get("PSRUNTIME_TEST_DATA")
    if not root:
        pytest.skip("PSRUNTIME_TEST_DATA is not set: it names the folder that holds fashion-mnist-3615")
    return str(Path(root) / "fashion-mnist-3615")


def plain_accuracies(data_dir: str) -> list[float]:
    command = [sys.executable, "-m", "tests.support.plain", MODEL, data_dir, str(BATCH), str(STEPS), str(PLAIN_RUNS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=True)
    return [metrics["accuracy"] for metrics in json.loads(done.stdout)]


def accuracy(zygote: Zygote, folder: Path, data_dir: str, seed: int, batch_size: int, **mode: Any) -> float:
    folder.mkdir()
    with cluster(zygote, folder, min_workers=2, train_steps=STEPS, **mode) as job:
        given = [f"--model={MODEL}", f"--data-dir={data_dir}", f"--batch-size={batch_size}", f"--seed={10 * seed}"]
        workers = [job.start_worker(index, *given) for index in range(2)]
        assert set(job.wait_all(120).values()) == {0}
        (said,) = [line for w in workers for line in w.text.splitlines() if line.startswith("held out")]
        return float(said.rsplit("accuracy ", 1)[1])


@pytest.fixture(scope="module")
def plain(data_dir: str) -> float:
    return mean(plain_accuracies(data_dir))


MODES = {  # settings, and the batch size with which the two workers see as many examples as the plain process
    "async": ({"mode": "async"}, BATCH),
    "bounded": ({"mode": "bounded", "bound": 2}, BATCH),
    "sync": ({"mode": "sync"}, BATCH // 2),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", long_but(["sync"], MODES))
def test_two_workers_learn_as_much_as_one_process(
    mode: str, zygote: Zygote, tmp_path: Path, data_dir: str, plain: float
) -> None:
    settings, batch_size = MODES[mode]
    ours = [accuracy(zygote, tmp_path / str(seed), data_dir, seed, batch_size, **settings) for seed in range(RUNS)]
    assert abs(mean(ours) - plain) <= WITHIN, f"{mode} {ours}, plain {plain}"
