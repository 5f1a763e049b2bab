"""launch/make-certs.sh: what it makes is of use, for the hosts that it was told, and it writes over nothing."""

from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from psruntime.config.process import SecurityConfig
from psruntime.rpc.wire.security import load_security
from tests.support.docs import ROOT

PROG = "launch/make-certs.sh"


def make(folder: Path, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run([ROOT / PROG, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(autouse=True)
def openssl() -> None:
    if not shutil.which("openssl"):
        pytest.skip("needs openssl: apt-get install openssl")


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ([], "DNS:localhost, IP Address:127.0.0.1, IP Address:0:0:0:0:0:0:0:1"),
        (
            ["ps0.example.org", "10.0.0.5", "fd00::5"],
            "DNS:ps0.example.org, IP Address:10.0.0.5, IP Address:FD00:0:0:0:0:0:0:5",
        ),
    ],
)
def test_it_makes_what_a_job_needs(tmp_path: Path, hosts: list[str], names: str) -> None:
    code, out, err = make(tmp_path, "certs", *hosts)
    assert (code, err) == (0, "")
    assert out.startswith("made ca.pem, cert.pem and key.pem in certs, for ")
    folder = tmp_path / "certs"
    assert sorted(path.name for path in folder.iterdir()) == ["ca.pem", "cert.pem", "key.pem"]
    assert stat.S_IMODE((folder / "key.pem").stat().st_mode) == 0o600
    assert load_security(SecurityConfig(*(str(folder / f"{name}.pem") for name in ("ca", "cert", "key")))).tls
    shown = subprocess.run(
        ["openssl", "x509", "-noout", "-ext", "subjectAltName", "-in", folder / "cert.pem"],
        capture_output=True,
        text=True,
    )
    assert names in shown.stdout


def test_it_writes_over_nothing(tmp_path: Path) -> None:
    assert make(tmp_path, "certs")[0] == 0
    before = (tmp_path / "certs" / "key.pem").read_bytes()
    code, out, err = make(tmp_path, "certs", "10.0.0.5")
    assert (code, out) == (2, "")
    assert err == f"{PROG}: folder certs cannot be made; does it exist?  Nothing is written over\n"
    assert (tmp_path / "certs" / "key.pem").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "usage: launch/make-certs.sh FOLDER [HOST...]"),
        (["--help"], "usage: launch/make-certs.sh FOLDER [HOST...]"),
        (["certs", "a b"], "'a b' is neither a name nor an address"),
        (["certs", "x,IP:10.0.0.5"], "'x,IP:10.0.0.5' is neither a name nor an address"),
        (["certs", "10.0.0.555"], "openssl refuses, as it says above"),
    ],
)
def test_a_mistake_leaves_nothing_behind(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    code, out, err = make(tmp_path, *arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == f"{PROG}: {complaint}"
    assert not list(tmp_path.iterdir())
