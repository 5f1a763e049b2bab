"""A chief that is stuck in its input, while its heartbeats go on: another worker does its duty."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from psruntime.core.members.view import Phase
from tests.support.cluster import Cluster, Zygote, cluster
from tests.support.faults import Faults
from tests.support.polling import poll_until

pytestmark = pytest.mark.cluster

LEASE_S = 1.0
STUCK = """
import os
import time
import tensorflow as tf
from tests.cluster import models
from tests.cluster.models import model_fn

def input_fn(context):
    def wait(x, y):
        gate = {gate!r} + str(context.worker_index)
        while context.mode == "train" and os.path.exists(gate):
            open(gate + "-reached", "w").close()
            time.sleep(0.05)
        return x, y
    data = models.input_fn(context)
    waited = data.map(lambda x, y: tf.numpy_function(wait, [x, y], [tf.float32, tf.float32]))
    return waited.map(lambda x, y: (tf.ensure_shape(x, [None, 4]), tf.ensure_shape(y, [None])))
"""


def start(job: Cluster, folder: Path) -> int:
    """Two workers; returns the index of the chief once they train."""
    (folder / "stuck_model.py").write_text(STUCK.format(gate=str(folder / "stuck-")))
    for index in range(2):
        job.start_worker(index, "--model=stuck_model")
    job.wait_for_step(60)
    (chief,) = [member.index for member in job.status().members if member.chief]
    return chief


def stick(folder: Path, worker: int) -> None:
    """Its input gives no further batch."""
    (folder / f"stuck-{worker}").touch()
    poll_until((folder / f"stuck-{worker}-reached").exists, 30, "the input to be stuck")


def steps_no_more(job: Cluster, worker: int) -> bool:
    """What was drawn ahead is used up."""
    before = job.worker_pushes()[worker]
    time.sleep(1.0)
    return job.worker_pushes()[worker] == before


def stop(job: Cluster, folder: Path) -> None:
    for gate in folder.glob("stuck-*"):
        gate.unlink()
    job.ps[0].signal(signal.SIGTERM)
    job.wait_all()


@pytest.mark.long
def test_a_chief_that_does_not_save_is_relieved(zygote: Zygote, tmp_path: Path) -> None:
    folder = {"checkpoint_dir": tmp_path / "c", "save_steps": 50}
    with cluster(zygote, tmp_path, min_workers=2, train_steps=1_000_000, lease_s=LEASE_S, **folder) as job:
        chief = start(job, tmp_path)
        stick(tmp_path, chief)
        overdue = job.ps[0].wait_for(" checkpoint_overdue ")
        assert f"worker={chief} " in overdue
        cut_off = job.ps[0].wait_for(" cut_off ")
        assert f'member="worker {chief}"' in cut_off and "the checkpoint is overdue by" in cut_off
        other = job.procs[-1] if job.procs[-1].name == f"worker-{1 - chief}" else job.procs[-2]
        saved = other.text.count(" checkpoint ")
        poll_until(lambda: other.text.count(" checkpoint ") > saved + 1, 30, "checkpoints of the other worker")
        assert job.status().phase is Phase.TRAINING
        assert "overdue" not in job.status().reason
        stop(job, tmp_path)


@pytest.mark.long
def test_a_chief_that_does_not_prepare_is_relieved(zygote: Zygote, tmp_path: Path) -> None:
    folder = {"checkpoint_dir": tmp_path / "c", "save_steps": 1_000_000, "save_secs": 1}
    with cluster(zygote, tmp_path, ps=2, min_workers=2, train_steps=1_000_000, lease_s=LEASE_S, **folder) as job:
        chief = start(job, tmp_path)
        poll_until(lambda: [*(tmp_path / "c").glob("model.ckpt-[1-9]*.index")], 30, "a checkpoint")
        stick(tmp_path, chief)
        poll_until(lambda: steps_no_more(job, chief), 30, "the chief to be stuck")
        job.ps[1].kill()
        job.start_again(job.ps[1])
        cut_off = job.ps[0].wait_for(" cut_off ")
        assert f'member="worker {chief}"' in cut_off
        late = re.search(r"did not begin to prepare view 2 for (\d+) s", cut_off)
        assert late and int(late[1]) >= 3, cut_off  # more where the machine is busy
        poll_until(lambda: job.status().phase is Phase.TRAINING, 30, "training")
        step = job.status().global_step
        job.wait_for_step(step + 20)
        stop(job, tmp_path)


@pytest.mark.long
def test_a_machine_that_is_suspended_costs_its_processes_alone(zygote: Zygote, tmp_path: Path) -> None:
    """One with a ps and a worker stands still for five leases."""
    folder = {"checkpoint_dir": tmp_path / "c", "save_steps": 50}
    with cluster(zygote, tmp_path, ps=2, min_workers=2, train_steps=1_000_000, lease_s=LEASE_S, **folder) as job:
        workers = [job.start_worker(index, "--model=tests.cluster.models") for index in range(2)]
        job.wait_for_step(100)
        machine = [job.ps[1], workers[1]]
        faults = Faults(job)
        for proc in machine:
            faults.stop(proc)
        job.ps[0].wait_for('member_lost member="ps 1"')
        job.ps[0].wait_for('member_lost member="worker 1"')
        job.wait_for_phase(Phase.FORMING)
        for proc in machine:
            faults.cont(proc)
        for proc in machine:
            proc.wait_for(" rejoining ")
        poll_until(lambda: job.status().phase is Phase.TRAINING, 30, "training")
        step = job.status().global_step
        job.wait_for_step(step + 50)
        assert len([member for member in job.status().members if member.worker_stats]) == 2
        stop(job, tmp_path)
