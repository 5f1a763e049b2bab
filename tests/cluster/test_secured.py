"""Jobs with mutual TLS and a token, as a user starts them: by flags, and by the environment."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from psruntime.config.process import SecurityConfig
from psruntime.config.settings import flag_of
from tests.support.certificates import TOKEN, Authority
from tests.support.commands import LOCAL, Commands, coordinator_of

pytestmark = pytest.mark.cluster

STATUS = (sys.executable, "-m", "psruntime", "status", "--coordinator")
WORKER = (sys.executable, "-m", "psruntime.worker", "--index", "7", "--coordinator")


def files_in(folder: Path) -> SecurityConfig:
    """A certificate of a new CA, and a token."""
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(TOKEN + "\n")
    tls = Authority(folder).files()
    return SecurityConfig(tls.tls_ca, tls.tls_cert, tls.tls_key, str(token))


def flags_of(files: SecurityConfig) -> list[str]:
    return [word for name, path in vars(files).items() if path for word in (flag_of(name), path)]


@pytest.mark.long
def test_a_job_with_tls_and_a_token_is_done_and_nobody_else_takes_part(commands: Commands, tmp_path: Path) -> None:
    flags = flags_of(files_in(tmp_path))
    tls, token = flags[:6], flags[6:]
    job = commands.start(LOCAL, "--ps", "2", "--workers", "1", "--train-steps", "300", *flags)
    address = coordinator_of(job)
    code, out, err = commands.run(*STATUS, address, "--json", *flags)
    assert (code, err) == (0, "") and '"ps": [' in out
    refused = [
        (STATUS, [], f"coordinator {address} speaks TLS: give --tls-ca, --tls-cert and --tls-key"),
        (STATUS, tls, "the coordinator refuses the call, which has no token"),
        (WORKER, token, f"coordinator {address} speaks TLS"),
        (WORKER, tls, "the coordinator refuses the call, which has no token"),
    ]
    for command, given, complaint in refused:
        code, out, err = commands.run(*command, address, *given)
        assert (code, out) == (2, ""), err
        (line,) = [line for line in err.splitlines() if not re.search(" exit code=2$| certificate ", line)]
        assert complaint in line
    out, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    assert "held out, at global step 30" in out
    assert not commands.running()


@pytest.mark.long
def test_a_script_in_a_secured_job_needs_the_environment_alone(commands: Commands, tmp_path: Path) -> None:
    files = files_in(tmp_path)
    commands.environment |= {f"PSRUNTIME_{name.upper()}": path for name, path in vars(files).items() if path}
    ps = commands.start(sys.executable, "-m", "psruntime.ps", "--index=0", "--coordinator=127.0.0.1:0", "--linger=0")
    assert ps.stdout
    address = ps.stdout.readline().split()[3]
    script = ["--ps_hosts", address, "--worker_hosts=127.0.0.1:0", "--last_step=100", "--checkpoint_dir=run"]
    code, out, err = commands.run(sys.executable, "-m", "psruntime.examples.softmax", "--task_index=0", *script)
    assert code == 0, err
    assert "held out, at global step 100" in out
    _, err = ps.communicate(timeout=60)
    assert ps.returncode == 0, err
    assert "serving" in err and "tls=True token=True" in err
    assert TOKEN not in err
