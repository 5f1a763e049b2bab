"""launch/slurm.sbatch: each task is started again when it crashes, and not when it is over or was asked to stop.

Each has a certificate of its node and the token of the job, and nothing of them is left.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

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
for variable in ${!PSRUNTIME_T*}; do
    echo "$variable ${!variable} $(stat -c %a "${!variable}") $(base64 -w 0 "${!variable}")" >> secrets
done
code=$(head -n 1 codes)
sed -i 1d codes
[ "$code" -ge 0 ] || kill -TERM $PPID
exit "${code#-}"
""",
    "srun": """#!/bin/bash
# Runs one task, on the second node.
while [ "$1" != bash ]; do shift; done
export SLURMD_NODENAME=n2
exec "$@"
""",
    "scontrol": f"""#!/bin/bash
case "$*" in
    "show hostnames n[1-2]") printf 'n1\\nn2\\n' ;;
    "show job 7") printf 'JobId=7 JobName=psruntime\\n   Command={SCRIPT} --ps 2\\n   WorkDir=/\\n' ;;
esac
""",
    "sleep": """#!/bin/bash
echo "$1" >> pauses
""",
}


TLS = ("PSRUNTIME_TLS_CA", "PSRUNTIME_TLS_CERT", "PSRUNTIME_TLS_KEY")
TOKEN = "PSRUNTIME_TOKEN_FILE"


def run(
    folder: Path, codes: list[int], programs: Mapping[str, str] = FAKES, *flags: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The script as Slurm runs it: a copy of it, elsewhere."""
    (folder / "codes").write_text("".join(f"{code}\n" for code in codes))
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    known = {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder / "home"), "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-2]",
    }  # fmt: skip
    copy = shutil.copy(SCRIPT, folder / "slurm_script")
    return subprocess.run(
        [copy, *FLAGS, *flags], cwd=folder, env=known | environment, text=True, capture_output=True, timeout=60,
        check=False,
    )  # fmt: skip


def secrets_of(folder: Path) -> dict[str, tuple[str, str, str]]:
    """Name of a variable -> path, mode and contents of its file, as psruntime found them."""
    file = folder / "secrets"
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return {name: (path, mode, b64decode(text).decode()) for name, path, mode, text in lines}


@pytest.mark.parametrize(
    ("codes", "pauses"), [([75, 137, 139, 0], 3), ([75, 1], 1), ([2], 0), ([127], 0), ([0], 0), ([75] * 8 + [0], 8)]
)
def test_a_task_is_started_again_if_it_crashed_and_can_be_found(tmp_path: Path, codes: list[int], pauses: int) -> None:
    done = run(tmp_path, codes)
    assert done.returncode == codes[-1], done.stderr
    (call,) = set((tmp_path / "calls").read_text().splitlines())
    assert call == f"psruntime task {' '.join(FLAGS)}"
    with patch.dict(os.environ, dict.fromkeys((*TLS, TOKEN), "x")):
        assert complaint(call.split(), {}) == ""
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


def test_a_task_has_the_certificate_of_its_node_and_nothing_is_left(tmp_path: Path) -> None:
    done = run(tmp_path, [75, 0])
    assert done.returncode == 0, done.stderr
    found, folder = secrets_of(tmp_path), tmp_path / "home" / ".psruntime" / "slurm-7"
    files = [*(folder / "certs" / "n2" / f"{name}.pem" for name in ("ca", "cert", "key")), folder / "token"]
    assert [found[name][0] for name in (*TLS, TOKEN)] == [str(file) for file in files]
    assert {mode for _, mode, _ in found.values()} == {"600"}
    assert len(found[TOKEN][2].strip()) == 64
    assert f"source {folder}/env" in done.stdout
    assert not folder.exists()
    for secret in (found[TOKEN][2].strip(), found[TLS[2]][2].splitlines()[1]):
        assert secret not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("flag", "environment"),
    [("--insecure", {}), ("--tls-ca=ca.pem", {}), ("", {TLS[0]: str(SCRIPT)})],
    ids=["insecure", "flags", "environment"],
)
def test_with_settings_of_the_user_nothing_is_made(tmp_path: Path, flag: str, environment: dict[str, str]) -> None:
    done = run(tmp_path, [0], FAKES, *([flag] if flag else []), **environment)
    assert done.returncode == 0, done.stderr
    assert secrets_of(tmp_path).keys() == environment.keys() and not (tmp_path / "home").exists()


def test_what_a_job_left_that_was_queued_again_is_made_anew_and_for_the_user_alone(tmp_path: Path) -> None:
    left = tmp_path / "elsewhere" / "slurm-7" / "certs" / "n1"
    left.mkdir(parents=True)
    look = "#!/bin/bash\nfolder=${PSRUNTIME_TOKEN_FILE%/token}\nstat -c %a $folder > mode\nls -R $folder > list\n"
    programs = {**FAKES, "psruntime": look}
    done = run(tmp_path, [], programs, SECRETS=str(tmp_path / "elsewhere"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mode").read_text() == "700\n" and not (tmp_path / "elsewhere" / "slurm-7").exists()
    assert "cert.pem" in (tmp_path / "list").read_text() and "ca-key.pem" not in (tmp_path / "list").read_text()


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"MAKE_CERTS": "/no/such"}, "there is no /no/such, which makes certificates; MAKE_CERTS names another"),
        ({"SECRETS": "/proc"}, "/proc/slurm-7 cannot be made; SECRETS names another folder"),
    ],
)
def test_without_certificates_nothing_is_started(tmp_path: Path, environment: dict[str, str], said: str) -> None:
    done = run(tmp_path, [0], **environment)
    assert done.returncode == 2 and not (tmp_path / "calls").exists()
    assert done.stderr.splitlines()[-1] == f"launch/slurm.sbatch: {said}"


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
    commands.environment |= {**slurm.environment, "PATH": path, "SECRETS": str(tmp_path / "secrets")}

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
    assert (log_of("first") + log_of("second")).count("tls=True token=True") >= 2
    assert not list((tmp_path / "secrets").iterdir())


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def is_python(pid: int) -> bool:
    return "python" in os.readlink(f"/proc/{pid}/exe")
