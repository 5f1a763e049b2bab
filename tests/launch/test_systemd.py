"""launch/systemd: systemd knows every key, and the units start and restart what the tables say."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

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


def analyze(folder: Path, role: str, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    """What systemd-analyze says of a unit, whose program is one that is there."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze: apt-get install systemd")
    unit = folder / f"psruntime-{role}@0.service"
    unit.write_text(text.replace("ExecStart=/opt/psruntime/bin/psruntime", f"ExecStart={sys.executable}"))
    return subprocess.run(["systemd-analyze", *words, str(unit)], capture_output=True, text=True, timeout=60)


def verify(folder: Path, role: str, text: str) -> str:
    """What systemd finds wrong with a unit."""
    done = analyze(folder, role, text, "verify")
    assert done.returncode == 0 or done.stderr
    return "\n".join(line for line in done.stderr.splitlines() if "psruntime" in line)


@pytest.mark.parametrize("role", ROLES)
def test_systemd_knows_every_key(role: str, tmp_path: Path) -> None:
    shutil.copy(FOLDER / "psruntime.slice", tmp_path)
    dropped = tmp_path / f"psruntime-{role}@0.service.d"
    dropped.mkdir()
    assert verify(tmp_path, role, text_of(role)) == ""
    shutil.copy(FOLDER / "insecure.conf", dropped)
    assert verify(tmp_path, role, text_of(role)) == ""


def test_a_wrong_key_of_the_other_files_would_be_found(tmp_path: Path) -> None:
    slice_ = (FOLDER / "psruntime.slice").read_text()
    (tmp_path / "psruntime.slice").write_text(slice_.replace("IPAddressAllow=10.0.0.5", "IPAddressAllow=10.0.0.555"))
    dropped = tmp_path / "psruntime-ps@0.service.d"
    dropped.mkdir()
    (dropped / "insecure.conf").write_text((FOLDER / "insecure.conf").read_text().replace("LoadC", "LaodC"))
    said = verify(tmp_path, "ps", text_of("ps"))
    assert "10.0.0.555" in said and "LaodCredential" in said


@pytest.mark.parametrize(("role", "at_most"), [("ps", 1.5), ("worker", 1.8)])
def test_a_unit_is_confined_by_the_count_of_systemd(role: str, at_most: float, tmp_path: Path) -> None:
    """Of 10, where 10 is a unit that may do everything."""
    threshold = f"--threshold={at_most * 10:g}"
    done = analyze(tmp_path, role, text_of(role), "security", "--offline=yes", threshold, "--no-pager")
    assert done.returncode == 0, done.stdout
    open_ = text_of(role).replace("NoNewPrivileges=yes", "").replace("IPAddressDeny=any", "")
    assert analyze(tmp_path, role, open_, "security", "--offline=yes", threshold, "--no-pager").returncode != 0


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
    with patch.dict(os.environ, credentials(role)):
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


def credentials(role: str) -> dict[str, str]:
    """The variables of TLS and the token that a unit sets."""
    return dict(re.findall(r"(PSRUNTIME_\w+)=(\S+)", " ".join(values(role, "Environment"))))


@pytest.mark.parametrize("role", ROLES)
def test_the_files_of_tls_and_the_token_are_credentials(role: str) -> None:
    loaded = dict(word.split(":") for word in values(role, "LoadCredential"))
    read = SecurityConfig.of({}, credentials(role))
    files = (read.tls_ca, read.tls_cert, read.tls_key, read.token_file)
    assert files == tuple(f"%d/{name}" for name in loaded) and len(loaded) == 4
    assert loaded == {name: f"/etc/psruntime/credentials/{name}" for name in loaded}


def test_files_of_the_user_take_the_place_of_credentials() -> None:
    """systemd reads job.env after the variables of a unit."""
    known = {name: value for name, value in environment().items() if name.startswith("PSRUNTIME_")}
    assert known.keys() == credentials("ps").keys() == credentials("worker").keys()


@pytest.mark.parametrize("role", ROLES)
def test_a_unit_reaches_this_machine_and_what_the_slice_names(role: str) -> None:
    assert (value(role, "IPAddressDeny"), value(role, "IPAddressAllow")) == ("any", "localhost")
    assert (FOLDER / value(role, "Slice")).read_text().count("\nIPAddressAllow=") == 1


def test_nothing_is_insecure_unless_it_is_chosen() -> None:
    for path in FOLDER.iterdir():
        if path.name != "insecure.conf":
            assert "--insecure" not in path.read_text(), path
