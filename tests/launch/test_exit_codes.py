"""What starts a process ends with the code of that process when it ends because of it, not with what its own stopping
did: each starter, and each end of a child, with children that only look like a ps and a worker.

launch/ssh.sh and launch/slurm.sbatch: test_ssh.py, test_slurm.py.  A script: tests/classic/test_sigterm.py.
"""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from psruntime.launch import colocated_ps
from psruntime.launch.colocated_ps import ColocatedPs
from tests.support.cluster import ROOT
from tests.support.polling import poll_until

WITHIN_S = 30.0
ENDS = {0: 0, 1: 1, 2: 2, 75: 75, 143: 143, -signal.SIGTERM: 143, -signal.SIGKILL: 137}  # of a child -> of its starter

FAKE = """
import os, sys, time
name, ends, code = sys.argv[1], sys.argv[2], int(sys.argv[3])
print("READY coordinator 0 here" if name == "ps-0" else "READY worker 0 here", flush=True)
while name == "ps-0" and not (os.path.exists("worker-0.log") and os.path.getsize("worker-0.log")):
    time.sleep(0.01)
while name != ends and not (name == "ps-0" and os.path.exists("done")):
    time.sleep(0.01)
if name != ends:
    sys.exit(0)
if name == "worker-0" and code == 0:
    open("done", "w").close()
if code < 0:
    os.kill(os.getpid(), -code)
os._exit(code)
"""
LAUNCHER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from psruntime.launch.children import ProcessSpec
from psruntime.launch.watch import Patience, run_job

def spec(name):
    return ProcessSpec(name, ("fake", name, *sys.argv[1:]))

job = SimpleNamespace(
    launcher=SimpleNamespace(restart=0, coordinator=""), first=lambda _: spec("ps-0"),
    others=lambda _: [spec("worker-0")], progress=lambda _: ("fake", "progress", "progress", "0"),
)
sys.exit(run_job(job, Path("."), Patience(0.5, 0.5)))
"""


@pytest.mark.parametrize("ends", ["ps-0", "worker-0"])
@pytest.mark.parametrize(("code", "expected"), ENDS.items())
def test_run_ends_with_the_code_of_the_process_that_ended_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, code: int, expected: int
) -> None:
    (tmp_path / "fake.py").write_text(FAKE)
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    done = subprocess.run(
        [sys.executable, "launcher.py", ends, str(code)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == expected, done.stderr
    assert ("ended with code" in done.stderr or "was killed by signal" in done.stderr) == (code != 0)
    assert ("; --restart N starts such a process again; its log is" in done.stderr) == (code < 0)


def program(code: int) -> list[str]:
    end = f"os.kill(os.getpid(), {-code})" if code < 0 else f"os._exit({code})"
    return ["-c", f"import os; {end}"]


@pytest.mark.parametrize(("code", "expected"), ENDS.items())
def test_a_ps_0_that_does_not_serve_ends_its_task_with_its_code(
    monkeypatch: pytest.MonkeyPatch, code: int, expected: int
) -> None:
    monkeypatch.setattr(colocated_ps, "RESTARTS", 0)
    ps = ColocatedPs([], lambda _: None, io.StringIO(), program(code), end_worker=lambda _: None)
    if code == 0:
        expected = 75  # it has not begun, so the job is not done
    assert ps.start_up(serves_coordinator=True) == expected


def test_a_ps_0_that_takes_too_long_is_no_failure_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is ended with is not the cause."""
    monkeypatch.setattr(colocated_ps, "START_S", 0.1)
    command = ["-c", "import time; time.sleep(600)"]
    ps = ColocatedPs([], lambda _: None, io.StringIO(), command, end_worker=lambda _: None)
    assert ps.start_up(serves_coordinator=True) == 75


@pytest.mark.parametrize(("code", "expected"), ENDS.items())
def test_a_ps_that_has_ended_for_good_ends_its_worker_with_its_code(
    monkeypatch: pytest.MonkeyPatch, code: int, expected: int
) -> None:
    """But where the job is over, of which the worker hears itself."""
    monkeypatch.setattr(colocated_ps, "RESTARTS", 0)
    causes: list[int] = []
    ps = ColocatedPs([], lambda _: None, io.StringIO(), program(code), end_worker=causes.append)
    ps.start(serves_coordinator=False)
    poll_until(lambda: ps.code is not None, WITHIN_S, "the end of the ps")
    ps.end(over=True, within_s=WITHIN_S)
    poll_until(lambda: code in (0, 1) or causes, WITHIN_S, "the end of the worker")
    assert causes == ([] if code in (0, 1) else [expected])
