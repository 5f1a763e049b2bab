"""launch/local.sh --restart: what crashes is started again, what is over is not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from psruntime.core.members.job_status import JobStatus, MemberStatus
from psruntime.core.members.membership import Role
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from tests.support.commands import LOCAL, Commands, coordinator_of
from tests.support.polling import poll_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

READY_S = 90.0  # for a process to import TensorFlow, join and take a step, on a busy machine
PACED = """
import os
import time
import tensorflow.compat.v1 as tf1
from tests.cluster import models
from tests.cluster.models import input_fn

def wait(x):
    if not os.path.exists({go!r}):
        time.sleep(0.2)
    return x

def model_fn(features, labels, mode):
    slow = tf1.numpy_function(wait, [features], tf1.float32)
    slow.set_shape(features.shape)
    return models.model_fn(slow, labels, mode)
"""


@pytest.fixture
def go(commands: Commands) -> Iterator[Path]:
    """A file; the model `paced` takes a step each 0.2 s until it is there."""
    file = commands.folder / "go"
    (commands.folder / "paced.py").write_text(PACED.format(go=str(file)))
    yield file


def killed(commands: Commands, role: str, index: int) -> None:
    pid = commands.pid_of("-m", f"psruntime.{role}", "--index", str(index))
    assert pid, f"{role} {index} does not run"
    os.kill(pid, signal.SIGKILL)


def member(status: JobStatus, role: Role, index: int) -> MemberStatus | None:
    return next((m for m in status.members if (m.role, m.index) == (role, index)), None)


def incarnation(client: CoordinatorClient, role: Role, index: int) -> str:
    """Of a member that is live and, if it is a worker, trains."""

    def live() -> MemberStatus | None:
        found = member(client.get_status()[0], role, index)
        return found if found and (found.worker_stats is None or found.worker_stats.pushes) else None

    found = poll_until(live, READY_S, f"{role} {index}")
    assert found
    return found.incarnation


@pytest.mark.long
def test_a_job_goes_on_when_its_processes_are_killed(commands: Commands, go: Path) -> None:
    job = commands.start(
        LOCAL, "--ps", "2", "--workers", "2", "--restart", "5", "--log-dir", "logs", "--model", "paced",
        "--train-steps", "2000", "--checkpoint-dir", str(commands.folder / "c"), "--save-steps", "20", "--lease", "3",
    )  # fmt: skip
    client = CoordinatorClient(coordinator_of(job))
    seen = {incarnation(client, Role.WORKER, 1)}
    for _ in range(2):
        killed(commands, "worker", 1)
        poll_until(lambda: incarnation(client, Role.WORKER, 1) not in seen, READY_S, "worker 1 trains again")
        seen.add(incarnation(client, Role.WORKER, 1))
    killed(commands, "ps", 1)
    poll_until(lambda: client.get_status()[0].view.number == 2, READY_S, "ps 1 is back")
    assert client.get_status()[0].global_step < 2000, "the job had to go on to be disturbed"
    client.close()
    go.touch()
    out, err = job.communicate(timeout=180)
    assert job.returncode == 0, err
    assert err.count("worker-1 was killed by signal 9 (Killed); restart ") == 2
    assert err.count("ps-1 was killed by signal 9 (Killed); restart 1 of 5 in 0.5 s") == 1
    assert err.count("restart") == 3
    assert "held out, at global step 20" in out
    log = (commands.folder / "logs" / "worker-1.log").read_text()
    assert log.count("READY worker 1 ") == 3 and log.count(" joined ") >= 3
    assert not commands.running()


@pytest.mark.long
def test_ps_0_comes_back_where_the_others_look_for_it(commands: Commands, go: Path) -> None:
    job = commands.start(
        LOCAL, "--ps", "2", "--workers", "1", "--restart", "1", "--log-dir", "logs", "--model", "paced",
        "--train-steps", "1000", "--checkpoint-dir", str(commands.folder / "c"), "--save-steps", "20", "--lease", "3",
    )  # fmt: skip
    address = coordinator_of(job)
    client = CoordinatorClient(address)
    before = incarnation(client, Role.WORKER, 0)
    killed(commands, "ps", 0)
    log = commands.folder / "logs" / "ps-0.log"
    poll_until(lambda: log.read_text().count(f"READY coordinator 0 {address}\n") == 2, READY_S, "ps 0 is back")
    assert incarnation(client, Role.WORKER, 0) != before
    client.close()
    go.touch()
    _, err = job.communicate(timeout=180)
    assert job.returncode == 0, err
    assert "ps-0 was killed by signal 9 (Killed); restart 1 of 1 in 0.5 s" in err
    assert not commands.running()


@pytest.mark.long
def test_a_process_that_crashes_too_often_ends_the_job(commands: Commands, go: Path) -> None:
    job = commands.start(LOCAL, "--workers", "1", "--restart", "1", "--model", "paced", "--log-dir", "logs")
    client = CoordinatorClient(coordinator_of(job))
    before = incarnation(client, Role.WORKER, 0)
    killed(commands, "worker", 0)
    poll_until(lambda: incarnation(client, Role.WORKER, 0) != before, READY_S, "worker 0 trains again")
    killed(commands, "worker", 0)
    client.close()
    _, err = job.communicate(timeout=60)
    assert job.returncode == 128 + signal.SIGKILL
    assert "worker-0 was killed by signal 9 (Killed), after 1 restarts; its log is" in err
    assert not commands.running()


@pytest.mark.long
def test_a_job_that_failed_is_not_begun_anew(commands: Commands) -> None:
    (commands.folder / "hopeless.py").write_text(
        "from tests.cluster.models import input_fn\n"
        "from tests.cluster import models\n"
        "def model_fn(features, labels, mode):\n"
        "    return models.model_fn(features * float('nan'), labels, mode)\n"
    )
    shape = ("--ps", "2", "--workers", "2", "--log-dir", "logs")
    code, _, err = commands.run(LOCAL, *shape, "--restart", "5", "--model", "hopeless")
    assert code == 1
    assert "restart" not in err
    assert "ended with code 1; its log is logs/" in err and "the loss is nan" in err
    assert not commands.running()
