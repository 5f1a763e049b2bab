"""launch/systemd: systemd knows every key, and the units start and restart what the tables say."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from psruntime.config.process import SecurityConfig
from psruntime.errors import EXIT_DONE
from psruntime.launch.children import crashed
from psruntime.process.job_file import read_job_file
from tests.support.command_lines import complaint
from tests.support.docs import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = ROOT / "launch" / "systemd"
ROLES = ("ps", "worker")
GRACE_S = 10  # docs/operations.md, "Stop a job": how much longer than --stop-grace the grace time has to be
SIGTERM_CODE = 143


def text_of(role: str) -> str:
    return (FOLDER / f"psruntime-{role}@.service").read_text()


def values(role: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", text_of(role), re.MULTILINE)


def value(role: str, key: str) -> str:
    (found,) = values(role, key)
    return str(found)


def environment() -> dict[str, str]:
    """Of the file of settings, also those that are switched off by a '#'."""
    lines = re.findall(r"^#?([A-Z_]+)=(.*)$", (FOLDER / "job.env").read_text(), re.MULTILINE)
    assert len(dict(lines)) == len(lines)
    return dict(lines)


def command(role: str, index: int, variables: dict[str, str]) -> list[str]:
    """As systemd makes it: ${NAME} is put in, $NAME becomes words."""
    words = []
    for word in shlex.split(value(role, "ExecStart").replace("%i", str(index))):
        if word.startswith("$") and not word.startswith("${"):
            words += variables[word[1:]].split()
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda found: variables[found[1]], word))
    return [word.replace("/etc/psruntime", str(FOLDER)) for word in words]


def verify(folder: Path, role: str, text: str) -> str:
    """What systemd says of a unit, whose program is one that is there."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze: apt-get install systemd")
    unit = folder / f"psruntime-{role}@.service"
    unit.write_text(text.replace("ExecStart=/opt/psruntime/bin/psruntime", f"ExecStart={sys.executable}"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 or done.stderr
    return "\n".join(line for line in done.stderr.splitlines() if f"psruntime-{role}@" in line)


@pytest.mark.parametrize("role", ROLES)
def test_systemd_knows_every_key(role: str, tmp_path: Path) -> None:
    assert verify(tmp_path, role, text_of(role)) == ""


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("Restart=on-failure", "Restrat=on-failure", "Restrat"),
        ("RestartSec=5", "RestartSec=soon", "ignoring: soon"),
        ("@system-service", "@no-such-set", "@no-such-set"),
    ],
)
def test_a_wrong_key_would_be_found(right: str, wrong: str, said: str, tmp_path: Path) -> None:
    text = text_of("ps")
    assert text.count(right) == 1
    assert said in verify(tmp_path, "ps", text.replace(right, wrong))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("index", range(2))
def test_a_unit_starts_what_there_is(role: str, index: int) -> None:
    program, *words = command(role, index, environment())
    assert Path(program).is_absolute() and words[0] == role
    assert complaint([Path(program).name, *words], {}) == ""


def test_a_wrong_flag_would_be_found() -> None:
    words = command("ps", 0, {**environment(), "PS_FLAGS": "--insecur"})
    assert "did you mean --insecure?" in complaint([Path(words[0]).name, *words[1:]], {})


@pytest.mark.parametrize("role", ROLES)
def test_a_unit_restarts_what_the_table_of_exit_codes_says(role: str) -> None:
    assert value(role, "Restart") == "on-failure"
    final = {int(code) for code in value(role, "RestartPreventExitStatus").split()} | {EXIT_DONE}
    assert final == {code for code in range(256) if not crashed(code)}
    assert value(role, "SuccessExitStatus") == str(SIGTERM_CODE)


@pytest.mark.parametrize("role", ROLES)
def test_there_is_time_for_a_last_checkpoint(role: str) -> None:
    settings = tomllib.loads((FOLDER / "job.toml").read_text())
    assert int(value(role, "TimeoutStopSec")) >= settings["stop_grace_s"] + GRACE_S


@pytest.mark.parametrize("role", ROLES)
def test_a_unit_may_write_its_checkpoints_and_little_else(role: str) -> None:
    folder = f"/var/lib/{value(role, 'StateDirectory')}"
    assert read_job_file(str(FOLDER / "job.toml"))["checkpoint_dir"].startswith(f"{folder}/")
    assert value(role, "WorkingDirectory") == folder
    assert value(role, "User") not in ("", "root")
    assert value(role, "ProtectSystem") == "strict"
    for key in ("NoNewPrivileges", "PrivateTmp", "ProtectHome"):
        assert value(role, key) == "yes"


def test_the_files_of_tls_are_those_that_processes_read() -> None:
    known = {name for name in environment() if name.startswith("PSRUNTIME_")}
    read = SecurityConfig.of({}, dict.fromkeys(known, "x"))
    assert read.tls_ca and read.tls_cert and read.tls_key and read.token_file
    assert len(known) == 4
