"""Processes that die, stop or hang: everybody else goes on, in seconds."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from psruntime.core.members.view import Phase
from tests.support.cluster import Cluster, Proc, Zygote, cluster
from tests.support.polling import poll_until

pytestmark = pytest.mark.cluster

SMALL = "--model=tests.cluster.models"
SLOW = "--model=tests.cluster.slow_models"
STUCK = """
import time
import tensorflow.compat.v1 as tf1
from tests.cluster import models
from tests.cluster.models import input_fn

def stall(x):
    open({flag!r}, "w").close()
    time.sleep(600)
    return x

def model_fn(features, labels, mode):
    slow = tf1.numpy_function(stall, [features], tf1.float32)
    slow.set_shape(features.shape)
    return models.model_fn(slow, labels, mode)
"""


def end(job: Cluster) -> None:
    for proc in reversed(job.procs):
        if proc.code is None:
            proc.signal(signal.SIGTERM)
    job.wait_all()


def test_a_killed_ps_comes_back_at_another_address(zygote: Zygote, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    with cluster(
        zygote,
        tmp_path,
        ps=2,
        min_workers=2,
        train_steps=1_000_000,
        checkpoint_dir=checkpoints,
        save_steps=100,
        lease_s=3,
    ) as job:
        workers = [job.start_worker(index, SMALL) for index in range(2)]
        job.wait_for_step(300)
        job.ps[1].kill()
        job.start_ps(1)
        poll_until(lambda: job.status().view.number == 2, 30, "view 2")
        job.wait_for_phase(Phase.TRAINING)
        status = job.status()
        assert status.steps_lost > 0
        poll_until(
            lambda: all(m.clock > 50 for m in job.status().members if m.worker_stats), 30, "steps of both workers"
        )
        assert "restored" in workers[0].text + workers[1].text
        assert job.status().view.ps[1].address != job.ps[1].wait_for("READY ps 1").split()[3]
        end(job)


@pytest.mark.long
def test_ps_0_dies_with_the_coordinator_and_everybody_finds_its_successor(zygote: Zygote, tmp_path: Path) -> None:
    job_flags = ["--ps=2", "--min-workers=2", "--train-steps=800", "--save-steps=100", "--lease=3", "--linger=0"]
    job_flags.append(f"--checkpoint-dir={tmp_path / 'c'}")
    with cluster(
        zygote,
        tmp_path,
        ps=2,
        min_workers=2,
        train_steps=800,
        checkpoint_dir=tmp_path / "c",
        save_steps=100,
        lease_s=3,
    ) as job:
        workers = [job.start_worker(index, SMALL) for index in range(2)]
        job.wait_for_step(250)
        job.ps[0].kill()
        job.start_ps(0, *job_flags)
        codes = job.wait_all()
        assert codes == {"ps-0": -signal.SIGKILL, "ps-0.1": 0, "ps-1": 0, "worker-0": 0, "worker-1": 0}
        assert "rejoining" in workers[0].text and "rejoining" in workers[1].text
        restored = [line for w in workers for line in w.text.splitlines() if " restored " in line]
        assert len(restored) == 1 and "fresh_ps=1" in restored[0]
        assert "held out, at global step 80" in workers[0].text + workers[1].text


def paused_past_its_lease(job: Cluster) -> Proc:
    """Worker 1 of a job of two, which is lost and stands still."""
    job.start_worker(0, SLOW)
    paused = job.start_worker(1, SLOW)
    poll_until(lambda: job.worker_pushes().get(1, 0) > 5, 30, "pushes of worker 1")
    paused.signal(signal.SIGSTOP)
    poll_until(lambda: 1 not in job.worker_pushes(), 30, "the end of its lease")
    return paused


@pytest.mark.long
def test_a_paused_worker_whose_place_was_taken_ends_with_75(zygote: Zygote, tmp_path: Path) -> None:
    with cluster(zygote, tmp_path, train_steps=1_000_000, lease_s=1) as job:
        paused = paused_past_its_lease(job)
        job.start_worker(1, SLOW)
        poll_until(lambda: job.worker_pushes().get(1, 0) > 5, 30, "pushes of its successor")
        paused.signal(signal.SIGCONT)
        assert paused.wait(30) == 75
        assert "worker 1 lost its place" in paused.wait_for(" error ")
        end(job)


@pytest.mark.long
def test_the_coordinator_names_why_a_lost_worker_was_silent(zygote: Zygote, tmp_path: Path) -> None:
    with cluster(zygote, tmp_path, train_steps=1_000_000, lease_s=1) as job:
        paused = paused_past_its_lease(job)
        paused.signal(signal.SIGCONT)
        job.ps[0].wait_for(' python_stood_still member="worker 1" seconds=')
        why = r"silent for [\d.]+ s: no Python ran in its process for [\d.]+ s; its log has the cause \(--lease 1\)"
        assert any(re.fullmatch(why, gone.reason) for gone in job.status().departures if gone.index == 1)
        end(job)


@pytest.mark.long
def test_a_chief_that_dies_is_succeeded_and_live_variables_are_kept(zygote: Zygote, tmp_path: Path) -> None:
    with cluster(zygote, tmp_path, min_workers=2, train_steps=800, checkpoint_dir=tmp_path / "c", lease_s=2) as job:
        workers = [job.start_worker(index, SMALL) for index in range(2)]
        job.wait_for_step(100)
        chief = next(m.index for m in job.status().members if m.chief)
        workers[chief].kill()
        poll_until(lambda: any(m.chief and m.index != chief for m in job.status().members), 30, "another chief")
        assert job.status().steps_lost == 0
        codes = job.wait_all()
        assert codes == {"ps-0": 0, f"worker-{chief}": -signal.SIGKILL, f"worker-{1 - chief}": 0}
        assert "held out, at global step 80" in workers[1 - chief].text


@pytest.mark.long
def test_sigterm_ends_a_worker_that_is_inside_a_long_step(zygote: Zygote, tmp_path: Path) -> None:
    flag = tmp_path / "inside"
    (tmp_path / "stuck_model.py").write_text(STUCK.format(flag=str(flag)))
    with cluster(zygote, tmp_path, train_steps=1_000_000, stop_grace_s=1) as job:
        stuck = job.start_worker(0, "--model=stuck_model")
        poll_until(flag.exists, 60, "a step")
        stuck.signal(signal.SIGTERM)
        assert stuck.wait(8) == 128 + signal.SIGTERM
        assert "abandoned" in stuck.text
        assert job.ps[0].wait(5) == 75
        assert "every worker was asked to stop; it was not saved within 1 s (stop_grace_s)" in job.ps[0].wait_for(
            " over "
        )


@pytest.mark.long
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_waits_ends_at_once(zygote: Zygote, tmp_path: Path, signum: int) -> None:
    with cluster(zygote, tmp_path, ps=2, min_workers=5) as job:
        worker = job.start_worker(0, SMALL)
        worker.wait_for("waiting")
        for proc in (worker, job.ps[1], job.ps[0]):
            proc.signal(signum)
            assert proc.wait(5) == 128 + signum
            assert "Traceback" not in proc.text
