"""launch/local.sh --alone: a job on one machine whose ports nothing but its own processes reaches."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import LOCAL, Commands, coordinator_of
from tests.support.polling import poll_until

ALONE = ["unshare", "--user", "--map-root-user", "--net"]
REFUSED = (
    f"{LOCAL.removeprefix(str(Path(LOCAL).parents[1]))[1:]}: --alone needs user namespaces (unshare, ip), and here"
)


def refusal() -> str:
    """Why there can be no user namespaces here; empty if there can."""
    try:
        done = subprocess.run([*ALONE, "ip", "link", "set", "lo", "up"], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"needs unshare (util-linux): {error.strerror}"
    return f"needs user namespaces and ip (iproute2): {done.stderr.strip()}" if done.returncode else ""


pytestmark = pytest.mark.skipif(bool(refusal()), reason=refusal() or "possible")


def is_open(port: int) -> bool:
    with socket.socket() as caller:
        caller.settimeout(5)
        return caller.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.long
@pytest.mark.cluster
def test_a_job_trains_where_no_other_process_of_the_machine_reaches_it(commands: Commands) -> None:
    job = commands.start(LOCAL, "--alone", "--workers", "1", "--model", "tests.cluster.models")
    assert job.stderr
    said = job.stderr.readline()
    (look,) = re.findall(r"to look at the job: (.*) psruntime status HOST:PORT$", said)
    address = coordinator_of(job)

    def inside(*command: str) -> str:
        done = subprocess.run([*look.split(), *command], capture_output=True, text=True, env=commands.environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ports() -> list[int]:
        return sorted(int(port) for port in re.findall(r"\S+:(\d+)\s+\S+:\*", inside("ss", "-Hltn")))

    status = [commands.environment["PYTHON"], "-m", "psruntime", "status", address]
    poll_until(lambda: "TRAINING" in inside(*status), 120, "training")
    found = ports()
    assert len(found) >= 4, "the coordinator, the health of the worker, and TensorFlow's of both"
    assert not any(is_open(port) for port in found)
    connect = "import socket, sys; [socket.create_connection(('127.0.0.1', int(p)), 5) for p in sys.argv[1:]]"
    inside(commands.environment["PYTHON"], "-c", connect, *map(str, found))
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=120)
    assert job.returncode == 128 + signal.SIGTERM and not commands.running()


def test_arguments_arrive_as_they_were_given(commands: Commands) -> None:
    code, out, err = commands.run(LOCAL, "--alone", "--workers", "two words")
    assert (code, out) == (2, "") and "two words" in err.splitlines()[-1]


def test_a_system_without_user_namespaces_says_so(commands: Commands) -> None:
    none_here = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    code, out, err = commands.run(*ALONE[:3], "sh", "-c", none_here, "sh", LOCAL, "--alone", "--workers", "1")
    assert (code, out) == (2, "") and err.startswith(REFUSED) and err.count("\n") == 1
