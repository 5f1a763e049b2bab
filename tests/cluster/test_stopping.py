"""Processes that are asked to stop: what was trained is saved first, and the job goes on from there."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from psruntime.core.members.view import Phase
from tests.support.cluster import Zygote, cluster
from tests.support.polling import poll_until

pytestmark = pytest.mark.cluster

SMALL = "--model=tests.cluster.models"
NEVER = 10_000_000  # steps until a checkpoint is due by itself
SYNC: dict[str, Any] = {"mode": "sync"}
ASYNC: dict[str, Any] = {"mode": "async"}
BOUNDED: dict[str, Any] = {"mode": "bounded", "bound": 4}


def newest_step(folder: Path) -> int:
    """Of the checkpoint that the folder lists last."""
    found = re.match(r'model_checkpoint_path: "model.ckpt-(\d+)"', (folder / "checkpoint").read_text())
    assert found
    return int(found[1])


@pytest.mark.long
@pytest.mark.parametrize("mode", [ASYNC, BOUNDED, SYNC], ids=lambda mode: mode["mode"])
def test_a_job_that_is_stopped_goes_on_where_it_was(zygote: Zygote, tmp_path: Path, mode: dict[str, Any]) -> None:
    settings = {"ps": 2, "min_workers": 2, "train_steps": NEVER, "save_steps": NEVER, **mode}
    checkpoints = tmp_path / "c"
    with cluster(zygote, tmp_path, checkpoint_dir=checkpoints, **settings) as job:
        for index in range(2):
            job.start_worker(index, SMALL)
        job.wait_for_step(100)
        job.ps[0].signal(signal.SIGTERM)
        assert job.wait_all() == {"ps-0": 143, "ps-1": 75, "worker-0": 75, "worker-1": 75}
        stopped = job.ps[0].wait_for(" over ")
        found = re.search(r"at global step (\d+); the newest checkpoint is of global step (\d+)", stopped)
        assert found and found[1] == found[2]
        assert newest_step(checkpoints) == int(found[1]) >= 100
        assert all("balanced=True" in ps.wait_for(" ledger ") for ps in job.ps)
    again = tmp_path / "again"
    again.mkdir()
    with cluster(zygote, again, checkpoint_dir=checkpoints, **settings) as job:
        workers = [job.start_worker(index, SMALL) for index in range(2)]
        job.wait_for_step(int(found[1]) + 20)
        assert f"restored global_step={found[1]} " in workers[0].text + workers[1].text
        assert job.status().steps_lost == 0
        for proc in job.procs:
            proc.signal(signal.SIGTERM)
        assert set(job.wait_all().values()) == {143}
    assert newest_step(checkpoints) >= int(found[1]) + 20


@pytest.mark.long
def test_who_is_asked_alone_leaves_without_harm(zygote: Zygote, tmp_path: Path) -> None:
    checkpoints = tmp_path / "c"
    with cluster(
        zygote, tmp_path, ps=2, min_workers=2, train_steps=NEVER, save_steps=NEVER, checkpoint_dir=checkpoints
    ) as job:
        workers = [job.start_worker(index, SMALL) for index in range(2)]
        job.wait_for_step(100)

        before = job.status().global_step
        job.ps[1].signal(signal.SIGTERM)
        assert job.ps[1].wait(15) == 143
        saved = newest_step(checkpoints)
        assert saved >= before, "the chief has saved before the ps went"
        job.start_again(job.ps[1])
        poll_until(lambda: job.status().view.number == 2 and job.status().phase is Phase.TRAINING, 60, "training")
        restored = [line for worker in workers for line in worker.text.splitlines() if " restored " in line]
        assert len(restored) == 1 and f"global_step={saved} " in restored[0]
        job.wait_for_step(saved + 50)

        workers[0].signal(signal.SIGTERM)
        assert workers[0].wait(15) == 143
        step = job.status().global_step
        job.wait_for_step(step + 50)
        assert job.status().phase is Phase.TRAINING

        workers[1].signal(signal.SIGTERM)
        codes = job.wait_all()
        assert codes == {"ps-0": 75, "ps-1": 143, "ps-1.1": 75, "worker-0": 143, "worker-1": 143}
        assert "every worker was asked to stop, at global step" in job.ps[0].wait_for(" over ")
    assert newest_step(checkpoints) >= step + 50


@pytest.mark.long
def test_a_second_signal_ends_a_process_at_once(zygote: Zygote, tmp_path: Path) -> None:
    with cluster(zygote, tmp_path, train_steps=NEVER, stop_grace_s=60, drain_timeout_s=60) as job:
        job.start_worker(0, "--model=tests.cluster.slow_models")
        poll_until(lambda: job.worker_pushes().get(0), 60, "a step")
        worker = job.procs[-1]
        worker.signal(signal.SIGSTOP)  # it cannot end its step
        job.ps[0].signal(signal.SIGTERM)
        job.wait_for_phase(Phase.DRAINING)
        began_s = time.monotonic()
        job.ps[0].signal(signal.SIGINT)
        assert job.ps[0].wait(10) == 143
        assert time.monotonic() - began_s < 8
        worker.signal(signal.SIGCONT)
        worker.signal(signal.SIGTERM)
        worker.wait(10)
