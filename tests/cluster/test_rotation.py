"""The CA, all certificates and the token of a job are changed while it trains: no member ends and no step is lost."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile

import pytest

from psruntime.config.process import SecurityConfig
from psruntime.rpc.wire.security import LOOK_S
from tests.cluster.test_secured import STATUS, files_in, flags_of
from tests.support.certificates import Authority
from tests.support.commands import LOCAL, Commands, coordinator_of
from tests.support.polling import poll_until

pytestmark = [pytest.mark.cluster, pytest.mark.long]

CONTROL = (sys.executable, "-m", "psruntime", "control", "--coordinator")
OTHER = "another-token-0123456789"
PROCESSES = ("ps-0", "ps-1", "worker-0", "worker-1")
TROUBLE = re.compile(r" (unreachable|rejoining|error|credentials_refused|member_lost|refused|retry) ")


def put(contents: bytes, path: str) -> None:
    """Replaces a file, as mv does."""
    beside = f"{path}.next"
    Path(beside).touch(mode=0o600)
    Path(beside).write_bytes(contents)
    os.replace(beside, path)


def changes(files: SecurityConfig, folder: Path) -> Iterator[str]:
    """docs/security.md: each step of the CA, then of the token; the files are of all processes of this machine."""
    old, new = Path(files.tls_ca).read_bytes(), Authority(folder)
    put(old + new.ca_file.read_bytes(), files.tls_ca)
    yield "both CAs"
    issued = new.files()
    put(Path(issued.tls_cert).read_bytes(), files.tls_cert)
    put(Path(issued.tls_key).read_bytes(), files.tls_key)
    yield "certificates of the new CA"
    copyfile(new.ca_file, files.tls_ca)
    yield "the new CA alone"
    before, after = Path(files.token_file).read_bytes(), OTHER.encode() + b"\n"
    put(before + after, files.token_file)
    yield "the new token accepted"
    put(after + before, files.token_file)
    yield "the new token sent"
    put(after, files.token_file)
    yield "the new token alone"


def test_certificates_and_tokens_change_under_load(commands: Commands, tmp_path: Path) -> None:
    files, logs = files_in(tmp_path), tmp_path / "logs"
    flags = flags_of(files)
    job = commands.start(
        LOCAL,
        "--ps",
        "2",
        "--workers",
        "2",
        "--mode",
        "sync",
        "--train-steps",
        "1000000",
        "--log-dir",
        str(logs),
        *flags,
    )
    address = coordinator_of(job)

    def status() -> dict[str, int]:
        code, out, err = commands.run(*STATUS, address, "--json", *flags)
        assert code == 0, err
        return json.loads(out)

    poll_until(lambda: status()["global_step"] > 20, 120, "the job trains")
    step = 0
    steps_of_change = 0
    for what in changes(files, tmp_path):
        steps_of_change += 1
        time.sleep(2 * LOOK_S)
        now = status()
        assert now["global_step"] > step, what
        step = now["global_step"]
    assert (now["steps_lost"], len(now["ps"]), len(now["workers"])) == (0, 2, 2)
    code, _, err = commands.run(*CONTROL, address, *flags, "drain")
    assert code == 0, err
    _, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    for name in PROCESSES:
        log = (logs / f"{name}.log").read_text()
        assert log.count(" credentials_read ") == steps_of_change, name
        assert not TROUBLE.search(log), name
    assert not commands.running()
