"""The table of docs/troubleshooting.md: each mistake gives the message and the exit code that stand there.

A test provokes the mistakes of its row names; `test_every_row_is_provoked` knows all of them.
"""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest

from psruntime.core.members.membership import Role
from psruntime.core.members.messages import LeaveKind
from psruntime.core.members.view import Phase
from tests.cluster.test_faults import end
from tests.support import docs
from tests.support.cluster import Cluster, Proc, Zygote, cluster
from tests.support.polling import poll_until

pytestmark = pytest.mark.cluster

ROWS = {row[0]: row[1:] for row in docs.table("docs/troubleshooting.md", "mistakes")}
SMALL = "--model=tests.cluster.models"
SLOW = "--model=tests.cluster.slow_models"
TYPES = """
import tensorflow.compat.v1 as tf1
from psruntime import ModelSpec
from tests.cluster.models import input_fn

def model_fn(features, labels, mode):
    kernel = tf1.get_variable("kernel", [4, 1])
    loss = tf1.reduce_mean(tf1.matmul(features, kernel) + tf1.cast(labels, tf1.int64))
    return ModelSpec(loss, tf1.train.AdamOptimizer)
"""
SHORT = """
import tensorflow.compat.v1 as tf1
from tests.cluster import models
from tests.cluster.models import input_fn

def model_fn(features, labels, mode):
    shorter = labels[tf1.cast(tf1.train.get_or_create_global_step() > 3, tf1.int32):]
    return models.model_fn(features, shorter, mode)
"""
NAN = """
import tensorflow.compat.v1 as tf1
from tests.cluster import models
from tests.cluster.models import input_fn

def model_fn(features, labels, mode):
    return models.model_fn(features * float("nan"), labels, mode)
"""
WIDER = """
from tests.cluster import models
from tests.cluster.models import input_fn

def model_fn(features, labels, mode):
    return models.model_with(0.0, features, labels, width=9)
"""
ON_A_WORKER = {  # what its command has beside the rest of it
    "the model's module is not found": "--model=no.such.module",
    "the module lacks a function": "--model=psruntime.errors",
    "wrong dtype": "--model=types_model",
    "a data file is missing": "--model=psruntime.examples.fashion_mnist --data-dir=/",
    "a GPU that is not there": "--devices=gpu:9999",
    "a port is in use": "--port=OCCUPIED",
    "wrong address of the coordinator": "--coordinator=127.0.0.1:1 --connect-timeout=1",
    "the same index twice": "--index=0",
}
ENDS_THE_JOB = {
    "a shape that fails only at run time",
    "the loss is not finite",
    "a checkpoint of another model",
    "a folder that cannot be written",
}


def require_row(mistake: str, proc: Proc) -> str:
    """Holds a process against its row; the line that says what the row says."""
    message, code, _ = ROWS[mistake]
    assert proc.wait() == int(code), (mistake, proc.text)
    pattern = "*" + "*".join(re.sub(r"([*?[])", r"[\1]", part) for part in message.strip("`").split("...")) + "*"
    found = [line for line in proc.text.splitlines() if fnmatch.fnmatchcase(line.replace('\\"', '"'), pattern)]
    assert found, (mistake, pattern, proc.text)
    return found[-1]


def test_every_row_is_provoked() -> None:
    assert set(ROWS) == set(ON_A_WORKER) | ENDS_THE_JOB
    for _, code, seconds in ROWS.values():
        assert code in ("1", "2") and float(seconds) > 0


def test_mistakes_of_a_worker_leave_the_job_alone(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "types_model.py").write_text(TYPES)
    with cluster(zygote, tmp_path, train_steps=1_000_000, lease_s=2) as job:
        job.start_worker(0, SLOW)
        job.wait_for_phase(Phase.TRAINING)
        occupied = job.coordinator.rsplit(":", 1)[1]
        workers = {
            mistake: job.start_worker(index, SMALL, *given.replace("OCCUPIED", occupied).split())
            for index, (mistake, given) in enumerate(ON_A_WORKER.items(), start=1)
        }
        for mistake, worker in workers.items():
            assert " error " in require_row(mistake, worker)
        assert job.status().phase is Phase.TRAINING
        end(job)


def failed(job: Cluster, mistake: str) -> str:
    """The job has failed, every process says why and exits with the code; the line of the first worker."""
    assert set(job.wait_all().values()) == {1}
    lines = [require_row(mistake, proc) for proc in job.procs]
    assert all(" error " in line for line in lines)
    return next(line for line in lines if " worker " in line)


@pytest.mark.long
def test_a_shape_that_fails_at_run_time_ends_the_job_and_everybody_says_why(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "short_model.py").write_text(SHORT)
    with cluster(zygote, tmp_path, ps=2, min_workers=2, train_steps=1_000_000) as job:
        workers = [job.start_worker(index, "--model=short_model") for index in range(2)]
        said = failed(job, "a shape that fails only at run time")
    assert re.search(r"made at \S*tests/cluster/models\.py:\d+, failed: InvalidArgumentError", said)
    assert any("\n    The operation was made here (most recent call last):\n" in worker.text for worker in workers)
    assert any(" step_failed " in worker.text for worker in workers)
    assert all(" crash " not in worker.text for worker in workers)
    assert "kind=fatal reason=" in job.ps[0].text
    assert max(len(line) for proc in job.procs for line in proc.text.splitlines()) < 2000


@pytest.mark.long
def test_a_loss_that_is_not_finite_ends_the_job_and_everybody_says_why(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "nan_model.py").write_text(NAN)
    with cluster(zygote, tmp_path, ps=2, checkpoint_dir=tmp_path / "c") as job:
        job.start_worker(0, "--model=nan_model")
        failed(job, "the loss is not finite")


@pytest.mark.long
def test_a_checkpoint_folder_that_cannot_be_written_ends_the_job(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with cluster(zygote, tmp_path, checkpoint_dir=tmp_path / "file" / "sub") as job:
        job.start_worker(0, SMALL)
        failed(job, "a folder that cannot be written")


@pytest.mark.long
def test_a_checkpoint_of_another_model_ends_the_job(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "wider_model.py").write_text(WIDER)
    for folder, steps in (("first", 2), ("second", 4)):
        (tmp_path / folder).mkdir()
        with cluster(zygote, tmp_path / folder, train_steps=steps, checkpoint_dir=tmp_path / "c") as job:
            job._path.append(str(tmp_path))
            job.start_worker(0, SMALL if folder == "first" else "--model=wider_model")
            if folder == "first":
                assert set(job.wait_all().values()) == {0}
            else:
                failed(job, "a checkpoint of another model")


@pytest.mark.long
def test_a_job_whose_last_worker_has_ended_for_good_fails(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "hooked.py").write_text("""
from dataclasses import replace
import tensorflow.compat.v1 as tf1
from tests.cluster import models
from tests.cluster.models import input_fn

class Failing(tf1.train.SessionRunHook):
    def begin(self):
        raise KeyError("no such column")

def model_fn(features, labels, mode):
    return replace(models.model_fn(features, labels, mode), hooks=[Failing()])
""")
    with cluster(zygote, tmp_path, train_steps=1_000_000) as job:
        worker = job.start_worker(0, "--model=hooked", "--log-format=json")
        assert worker.wait() == 2
        assert '"event": "error", "reason": "hook Failing failed at ' in worker.text
        poll_until(lambda: job.status().departures, 10, "a departure")
        status = job.status()
        assert [(d.role, d.index, d.kind) for d in status.departures] == [(Role.WORKER, 0, LeaveKind.USAGE)]
        assert re.search(r"no worker is live; worker 0 left \d+ s ago \(usage\): .*no such column", status.reason)
        job.ps[0].wait_for(" no_workers ")
        assert job.ps[0].wait() == 1
        assert "no worker is left: worker 0 has ended for good: hook Failing failed at " in job.ps[0].wait_for(
            " error "
        )


@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--model=broken"], "SyntaxError"),
        (["--batch-sise=8"], "unrecognized argument --batch-sise"),
        (["--batch-size=0"], "batch_size"),
        (["--mode=sync"], "flags contradict the job's settings"),
    ],
    ids=["model", "unknown flag", "flag out of range", "other setting"],
)
def test_a_lost_worker_that_ends_for_good_before_it_joins_ends_the_job(
    zygote: Zygote, tmp_path: Path, flags: list[str], why: str
) -> None:
    (tmp_path / "broken.py").write_text("def input_fn(context)\n")
    with cluster(zygote, tmp_path, train_steps=1_000_000) as job:
        worker = job.start_worker(0, "--model=tests.cluster.models")
        job.wait_for_step(1)
        worker.kill()
        job.ps[0].wait_for(" no_workers ")
        again = job.start_worker(0, *flags)
        assert again.wait() == 2
        assert job.ps[0].wait() == 1
        error = job.ps[0].wait_for(" error ")
        assert "no worker is left: worker 0 has ended for good: " in error and why in error
        assert " start_failed " in job.ps[0].text


@pytest.mark.long
def test_a_job_of_which_too_few_workers_can_come_fails(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def input_fn(context)\n")
    with cluster(zygote, tmp_path, train_steps=1_000_000, min_workers=2) as job:
        first, second = job.start_worker(0, "--model=tests.cluster.models"), job.start_worker(1, "--model=broken")
        assert second.wait() == 2
        poll_until(lambda: "SyntaxError" in job.status().reason, 10, "the reason in the status")
        assert job.ps[0].wait(120) == 1
        assert first.wait() == 1
        assert "worker 1 has ended for good: " in job.ps[0].wait_for(" error ")


ENDLESS = """
import tensorflow.compat.v1 as tf1
from tests.cluster import models
from tests.cluster.models import model_fn

def forever():
    while True:
        yield [1.0] * 4, 1.0

def input_fn(context):
    if context.mode == "train":
        return models.input_fn(context)
    of_one = tf1.data.Dataset.from_generator(forever, (tf1.float32, tf1.float32), ([4], []))
    return of_one.batch(context.batch_size)
"""


@pytest.mark.long
@pytest.mark.parametrize("flags", [[], ["--eval-batches=2"]], ids=["all batches", "two"])
def test_held_out_data_without_an_end_do_not_keep_the_job(zygote: Zygote, tmp_path: Path, flags: list[str]) -> None:
    (tmp_path / "endless_model.py").write_text(ENDLESS)
    settings = {"checkpoint_dir": tmp_path / "c", "keep_best": "loss", "drain_timeout_s": 4, "train_steps": 20}
    with cluster(zygote, tmp_path, **settings) as job:
        worker = job.start_worker(0, "--model=endless_model", *flags)
        argv = ["evaluator", f"--coordinator={job.coordinator}", "--model=endless_model", *flags]
        evaluator = zygote.start("evaluator", argv, tmp_path / "evaluator.log", [str(tmp_path)])
        job.procs.append(evaluator)
        codes = (worker.wait(120), evaluator.wait(120))
        assert job.ps[0].wait() == 0
    if flags:
        assert codes == (0, 0)
        assert "held out, at global step 20" in worker.text
        return
    assert codes == (1, 1)
    for event in (" best_failed ", " evaluation_failed "):
        assert "it did not end within 20 s" in worker.wait_for(event)
    assert "do the data end? --eval-batches N ends it after N batches" in evaluator.wait_for(" error ")


RATES = """
from dataclasses import replace
from tests.cluster import models
from tests.cluster.models import input_fn

def model_fn(features, labels, mode):
    return replace(models.model_fn(features, labels, mode), learning_rate=lambda step: [0.1, 0.01][step // 20])
"""


@pytest.mark.long
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_what_was_trained_is_saved_before_the_models_code_ends_the_job(
    zygote: Zygote, tmp_path: Path, mode: str
) -> None:
    (tmp_path / "rates.py").write_text(RATES)
    with cluster(
        zygote, tmp_path, min_workers=2, mode=mode, train_steps=1_000_000, checkpoint_dir=tmp_path / "c"
    ) as job:
        for index in range(2):
            job.start_worker(index, "--model=rates")
        assert set(job.wait_all().values()) == {1}
        said = job.ps[0].wait_for(" error ")
    assert "IndexError: list index out of range" in said
    saved = re.search(r"the newest checkpoint is of global step (\d+)", said)
    assert saved and int(saved[1]) >= 40, said
