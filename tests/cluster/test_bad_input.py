"""A user's mistakes, at the real entry points: one clear line, a non-zero code, no traceback.

The most common ones are in test_common_mistakes.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from psruntime.core.members.view import Phase
from tests.cluster.test_faults import end
from tests.support.cluster import Zygote, cluster
from tests.support.polling import poll_until

pytestmark = pytest.mark.cluster

SMALL = "--model=tests.cluster.models"
SLOW = "--model=tests.cluster.slow_models"  # the same model: who only has to be there leaves the cores to others
OTHER_SHAPE = """
import tensorflow.compat.v1 as tf1
from psruntime import ModelSpec
from tests.cluster.models import input_fn

def model_fn(features, labels, mode):
    kernel = tf1.get_variable("kernel", [4, 9])
    return ModelSpec(tf1.reduce_sum(kernel), tf1.train.AdamOptimizer)
"""
NO_EVAL = """
from tests.cluster import models
from tests.cluster.models import model_fn

def input_fn(context):
    if context.mode == "eval":
        raise FileNotFoundError("no held-out files")
    return models.input_fn(context)
"""
REFUSED = {
    ("--index=2000",): "worker index 2000 is out of range: the job has max_workers 1024, from 0",
    ("--train-steps=5",): "flags contradict the job's settings: --train-steps 5 here, 1000000 in the job",
    ("--data-dir=/nowhere",): "--data-dir /nowhere is not there: no such file or folder on this machine",
    ("--model=other_shape",): "kernel float32[4, 8] there, kernel float32[4, 9] here",
    ("--health-port=OCCUPIED",): "is in use; choose another port with --health-port",
    ("--host=192.0.2.1",): "address 192.0.2.1:0 cannot be listened at",
    ("--host=no.such.host.invalid", "--connect-timeout=1"): "'no.such.host.invalid' cannot be resolved",
}


@pytest.mark.long
def test_each_mistake_of_a_worker_is_one_line(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "other_shape.py").write_text(OTHER_SHAPE)
    with cluster(zygote, tmp_path, train_steps=1_000_000) as job:
        job.start_worker(0, SLOW)
        job.wait_for_phase(Phase.TRAINING)
        occupied = job.coordinator.rsplit(":", 1)[1]
        for position, (given, complaint) in enumerate(REFUSED.items(), start=1):
            worker = job.start_worker(position, *(flag.replace("OCCUPIED", occupied) for flag in (SMALL, *given)))
            assert worker.wait() == 2, (given, worker.text)
            lines = [line for line in worker.text.splitlines() if complaint in line]
            assert len(lines) == 1, (given, worker.text)
            assert "Traceback" not in worker.text, worker.text
        assert job.status().phase is Phase.TRAINING
        end(job)


@pytest.mark.long
def test_a_ps_may_be_given_the_job_file_of_ps_0_and_no_other(zygote: Zygote, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    with cluster(zygote, tmp_path, train_steps=1_000_000) as job:
        job.start_worker(0, SLOW)
        job.wait_for_phase(Phase.TRAINING)
        for steps, said in (5, "--train-steps 5 here, 1000000 in the job"), (1_000_000, "ps index 7 is out of range"):
            file.write_text(f"train_steps = {steps}\n")
            ps = job.start_ps(7, f"--job={file}")
            assert ps.wait() == 2
            assert said in ps.wait_for(" error ")
        end(job)


@pytest.mark.long
def test_an_evaluation_that_cannot_be_built_is_known_before_the_training(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "no_eval.py").write_text(NO_EVAL)
    with cluster(zygote, tmp_path, checkpoint_dir=tmp_path / "c", keep_best="accuracy") as job:
        worker = job.start_worker(0, "--model=no_eval")
        assert worker.wait() == 2
        assert "input_fn of no_eval (mode eval) failed" in worker.wait_for(" error ")
        worker = job.start_worker(0, SMALL)
        assert worker.wait() == 2
        said = "keep_best names accuracy, which the model does not measure; it has loss"
        assert said in worker.wait_for(" error ")
        end(job)


@pytest.mark.long
def test_an_index_that_is_held_names_its_holder(zygote: Zygote, tmp_path: Path) -> None:
    with cluster(zygote, tmp_path, train_steps=1_000_000, lease_s=2) as job:
        job.start_worker(0, SLOW)
        job.wait_for_phase(Phase.TRAINING)
        second = job.start_worker(0, SMALL)
        assert second.wait() == 2
        held = second.wait_for(" error ")
        incarnation = next(m.incarnation for m in job.status().members if m.worker_stats)
        assert f"incarnation {incarnation}, admitted " in held
        poll_until(lambda: len(job.status().members) == 2, 10, "two members")
        end(job)
