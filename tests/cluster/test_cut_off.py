"""The end of a job in which somebody is stuck: it comes, in a stated time, and names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from psruntime.core.members.view import Phase
from tests.support.cluster import Zygote, cluster
from tests.support.polling import poll_until

pytestmark = pytest.mark.cluster

SMALL = "--model=tests.cluster.models"
STUCK = """
import os
import time
import tensorflow.compat.v1 as tf1
from tests.cluster import models

def stall(x):
    if os.path.exists({go!r}):
        try:
            os.close(os.open({stuck!r}, os.O_CREAT | os.O_EXCL))
        except FileExistsError:  # one is enough
            return x
        time.sleep(600)
    return x

def stalling(features):
    slow = tf1.numpy_function(stall, [features], tf1.float32)
    slow.set_shape(features.shape)
    return slow

def input_fn(context):
    data = models.input_fn(context)
    return data.map(lambda x, y: (stalling(x), y)) if context.mode == {mode!r} == "eval" else data

def model_fn(features, labels, mode):
    return models.model_fn(stalling(features) if mode == {mode!r} == "train" else features, labels, mode)
"""


def stuck_model(folder: Path, mode: str) -> tuple[Path, Path]:
    """Writes `stuck_model`, whose first step (or evaluation, with mode "eval") hangs that begins once the first file
    is there; then the second one is."""
    go, stuck = folder / "go", folder / "stuck"
    (folder / "stuck_model.py").write_text(STUCK.format(go=str(go), stuck=str(stuck), mode=mode))
    return go, stuck


@pytest.mark.long
def test_a_worker_that_is_stuck_in_a_step_does_not_hold_up_the_end(zygote: Zygote, tmp_path: Path) -> None:
    go, stuck = stuck_model(tmp_path, "train")
    job_flags = {"train_steps": 400, "checkpoint_dir": tmp_path / "c", "drain_timeout_s": 3}
    with cluster(zygote, tmp_path, min_workers=2, **job_flags) as job:
        workers = [job.start_worker(0, SMALL), job.start_worker(1, "--model=stuck_model")]
        poll_until(lambda: job.worker_pushes().get(1, 0) > 3, 60, "steps of worker 1")
        go.touch()
        poll_until(stuck.exists, 60, "worker 1 is stuck")
        job.wait_for_phase(Phase.DRAINING)
        poll_until(lambda: "waiting for worker 1 to stop, for" in job.status().reason, 10, "the status names it")
        assert job.wait_all() == {"ps-0": 0, "worker-0": 0, "worker-1": 0}
        cut = job.ps[0].wait_for(" cut_off ")
        assert 'member="worker 1"' in cut and 'reason="did not stop within 3 s (drain_timeout_s)"' in cut
        assert "checkpoint path=" in workers[0].text and "held out" in workers[0].text
        assert "rejoining" in workers[1].text and "abandoned" in workers[1].text
        assert "balanced=True" in job.ps[0].text


@pytest.mark.long
def test_a_chief_that_is_stuck_while_it_closes_is_succeeded(zygote: Zygote, tmp_path: Path) -> None:
    go, stuck = stuck_model(tmp_path, "eval")
    go.touch()
    job_flags = {"train_steps": 100, "checkpoint_dir": tmp_path / "c", "drain_timeout_s": 3}
    with cluster(zygote, tmp_path, min_workers=2, **job_flags) as job:
        workers = [job.start_worker(index, "--model=stuck_model") for index in range(2)]
        poll_until(stuck.exists, 60, "the chief is stuck")
        chief = next(m.index for m in job.status().members if m.chief)
        assert job.wait_all() == {"ps-0": 0, "worker-0": 0, "worker-1": 0}
        cut = job.ps[0].wait_for(" cut_off ")
        assert f'member="worker {chief}"' in cut and 'reason="did not finish within 3 s (drain_timeout_s)"' in cut
        assert "held out" in workers[1 - chief].text and "held out" not in workers[chief].text
        assert job.ps[0].text.count(" cut_off ") == 1


@pytest.mark.long
def test_an_evaluation_at_the_end_that_is_stuck_does_not_fail_the_job(zygote: Zygote, tmp_path: Path) -> None:
    """No other worker could end the job, which is done and saved: the evaluation is given up after its limit."""
    go, _ = stuck_model(tmp_path, "eval")
    go.touch()
    with cluster(zygote, tmp_path, train_steps=100, checkpoint_dir=tmp_path / "c", drain_timeout_s=2) as job:
        worker = job.start_worker(0, "--model=stuck_model")
        assert job.wait_all() == {"ps-0": 0, "worker-0": 1}
        assert "it did not end within 10 s (5 times --drain-timeout)" in worker.wait_for(" evaluation_failed ")
        assert " cut_off " not in job.ps[0].text and "now=DONE" in job.ps[0].text
