"""launch/ssh.sh over connections of OpenSSH: a job ends, is stopped, comes back, and leaves nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.polling import await_line, poll_until
from tests.support.sshd import Machines, refusal

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.usefixtures("sigint_as_in_a_terminal")]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    if why := refusal():
        pytest.skip(why)
    with ExitStack() as stack:
        yield Machines(tmp_path, stack)


def test_a_job_over_ssh_is_done_and_leaves_nothing(machines: Machines) -> None:
    process = machines.start("--train-steps=300")
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0, err + out
    assert re.search(r"^worker-[01]: .*held out, at global step", out, re.MULTILINE)
    assert re.search(r"^ps-0: .* serving .*tls=True token=True$", out, re.MULTILINE)
    assert re.search(r"^worker-0: .* first_step", out, re.MULTILINE)
    assert re.search(r"^worker-1: .* first_step", out, re.MULTILINE)
    assert sorted(re.findall(r"(\S+ on \S+) ended with 0\n", err)) == [
        "ps-0 on 127.0.0.1", "worker-0 on 127.0.0.1", "worker-1 on localhost",
    ]  # fmt: skip
    machines.await_end(30)


def await_training(process: subprocess.Popen[str]) -> None:
    for _ in range(2):
        await_line(process.stdout, " first_step ")


def test_ctrl_c_saves_what_was_trained(machines: Machines) -> None:
    process = machines.start("--save-steps=1000000")
    await_training(process)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    stopped = re.search(r"now=STOPPED .*the newest checkpoint is of global step (\d+)", out)
    assert stopped and int(stopped[1]) in machines.saved()
    machines.await_end(30)


def test_a_worker_that_is_killed_over_ssh_comes_back(machines: Machines) -> None:
    process = machines.start("--save-steps=1000000")
    await_training(process)
    victim = next(pid for pid in machines.commands.running() if is_task(pid, b"worker\0--index\0001\0"))
    os.kill(victim, signal.SIGKILL)
    await_line(process.stderr, "worker-1 on localhost ended with 137")
    await_line(process.stdout, " first_step ")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 143 and machines.saved()
    machines.await_end(30)


def is_task(pid: int, words: bytes) -> bool:
    return "python" in os.readlink(f"/proc/{pid}/exe") and words in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_no_remote_process_outlives_a_launcher_that_is_killed(machines: Machines) -> None:
    process = machines.start("--save-steps=1000000")
    await_training(process)
    process.kill()
    process.communicate(timeout=120)  # ends when all have ended that write there
    assert machines.saved()
    machines.await_end(30)


def test_nor_one_whose_machine_stands_still(machines: Machines) -> None:
    """The connections stay, and nothing comes over them."""
    process = machines.start("--save-steps=1000000")
    await_training(process)
    os.killpg(process.pid, signal.SIGSTOP)
    remote = [pid for pid in machines.commands.running() if is_task(pid, b"--lifeline\0")]
    assert len(remote) == 3
    poll_until(lambda: not set(remote) & set(machines.commands.running()), 150, "the end of the remote processes")
    assert machines.saved()
    os.killpg(process.pid, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    machines.await_end(30)
    left = re.search(r"source (\S+)/env", err)
    assert left
    shutil.rmtree(left[1])  # which the whole group had no time for
