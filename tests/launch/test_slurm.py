"""launch/slurm.sbatch: each task is started again when it crashes, and not when it is over or was asked to stop."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.cluster import ROOT
from tests.support.command_lines import complaint
from tests.support.commands import Commands
from tests.support.polling import poll_until
from tests.support.slurm import Slurm, refusal

SCRIPT = ROOT / "launch" / "slurm.sbatch"
FLAGS = ["--ps", "2", "--model", "psruntime.examples.digits"]
FAKES = {
    "psruntime": """#!/bin/bash
# Writes down how it was called, and ends with the first of the codes that are left; one that is negative comes with a
# signal to the task.
echo "psruntime $*" >> calls
code=$(head -n 1 codes)
sed -i 1d codes
[ "$code" -ge 0 ] || kill -TERM $PPID
exit "${code#-}"
""",
    "srun": """#!/bin/bash
# Runs one task.
while [ "$1" != bash ]; do shift; done
exec "$@"
""",
    "sleep": """#!/bin/bash
echo "$1" >> pauses
""",
}


def run(folder: Path, codes: list[int], programs: Mapping[str, str] = FAKES) -> subprocess.CompletedProcess[str]:
    (folder / "codes").write_text("".join(f"{code}\n" for code in codes))
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    path = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        [SCRIPT, *FLAGS], cwd=folder, env=path, text=True, capture_output=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("codes", "pauses"), [([75, 137, 139, 0], 3), ([75, 1], 1), ([2], 0), ([127], 0), ([0], 0), ([75] * 8 + [0], 8)]
)
def test_a_task_is_started_again_if_it_crashed_and_can_be_found(tmp_path: Path, codes: list[int], pauses: int) -> None:
    done = run(tmp_path, codes)
    assert done.returncode == codes[-1], done.stderr
    (call,) = set((tmp_path / "calls").read_text().splitlines())
    assert call == f"psruntime task --insecure {' '.join(FLAGS)}" and complaint(call.split(), {}) == ""
    slept = (tmp_path / "pauses").read_text().split() if pauses else []
    assert slept == ["1", "2", "4", "8", "16", "32", "32", "32"][:pauses]
    assert not (tmp_path / "codes").read_text()


def test_a_task_that_was_asked_to_stop_is_not_started_again(tmp_path: Path) -> None:
    assert run(tmp_path, [75, -143, 0]).returncode == 143
    assert (tmp_path / "codes").read_text() == "0\n"


def test_nor_is_one_that_was_asked_while_it_waited_to_be_started_again(tmp_path: Path) -> None:
    sleep = "#!/bin/bash\nkill -TERM $PPID\n"
    assert run(tmp_path, [75, 0], {**FAKES, "sleep": sleep}).returncode == 75
    assert (tmp_path / "codes").read_text() == "0\n"


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    if why := refusal():
        pytest.skip(why)
    with ExitStack() as stack:
        yield Slurm(tmp_path / "slurm", stack)


@pytest.mark.cluster
@pytest.mark.long
def test_two_jobs_share_a_node_a_killed_task_comes_back_and_scancel_saves(slurm: Slurm, tmp_path: Path) -> None:
    commands = Commands(tmp_path)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    commands.environment |= {**slurm.environment, "PATH": path}

    def submit(name: str, tasks: int, *flags: str) -> str:
        where = [f"--ntasks={tasks}", f"--output={tmp_path / name}.log"]
        code, out, err = commands.run(
            "sbatch", *where, str(SCRIPT), f"--checkpoint-dir={tmp_path / name}", "--linger=0", *flags
        )
        assert code == 0, err
        return out.split()[-1]

    def log_of(name: str) -> str:
        return (tmp_path / f"{name}.log").read_text() if (tmp_path / f"{name}.log").exists() else ""

    def is_over(job: str) -> bool:
        return not slurm.ask("squeue", "-h", "-j", job)

    first = submit("first", 3, "--ps=1", "--train-steps=300")
    second = submit("second", 4, "--ps=2", "--save-steps=1000000")
    poll_until(lambda: log_of("second").count(" first_step ") == 2, 120, "two workers of the second job")
    poll_until(lambda: is_over(first), 120, "the end of the first job")
    assert "held out, at global step" in log_of("first")
    ports = re.findall(r"READY coordinator 0 \S+:(\d+)", log_of("first") + log_of("second"))
    assert len(set(ports)) == 2

    victim = next(pid for pid in commands.running() if b"SLURM_PROCID=3" in environment_of(pid) and is_python(pid))
    os.kill(victim, 9)
    poll_until(lambda: log_of("second").count(" first_step ") == 3, 120, "the worker that was killed")
    assert "psruntime task ended with 137 and is started again in 1 s" in log_of("second")

    slurm.ask("scancel", second)
    poll_until(lambda: is_over(second), 60, "the end of the second job")
    stopped = re.search(r"now=STOPPED .*the newest checkpoint is of global step (\d+)", log_of("second"))
    assert stopped and (tmp_path / "second" / f"model.ckpt-{stopped[1]}.index").exists()
    poll_until(lambda: not commands.running(), 10, "the end of all processes")


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def is_python(pid: int) -> bool:
    return "python" in os.readlink(f"/proc/{pid}/exe")
