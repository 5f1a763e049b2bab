"""launch/make-certs.sh: what it makes is of use, for the hosts that it was given, and is renewed while it is used."""

from __future__ import annotations

import shutil
import ssl
import stat
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from psruntime.config.process import SecurityConfig
from psruntime.rpc.wire.security import load_security
from tests.support.docs import ROOT

PROG = "launch/make-certs.sh"
FILES = ("ca", "cert", "key")


def make(folder: Path, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run([ROOT / PROG, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def made(folder: Path, *arguments: str) -> str:
    code, out, err = make(folder, *arguments)
    assert (code, err) == (0, "")
    return out


def openssl(*arguments: str | Path) -> str:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def trusts(ca: Path, *certs: Path) -> list[bool]:
    """Whether the CAs in a file accept each of these certificates."""
    return [": OK" in openssl("verify", "-CAfile", ca, cert) for cert in certs]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def _needs_openssl() -> None:
    if not shutil.which("openssl"):
        pytest.skip("needs openssl: apt-get install openssl")


@pytest.mark.parametrize(
    ("host", "member", "names"),
    [
        ([], "localhost", "DNS:localhost, IP Address:127.0.0.1, IP Address:0:0:0:0:0:0:0:1"),
        (["ps_0.example.org"], "ps_0.example.org", "DNS:ps_0.example.org"),
        (["a,10.0.0.5,fd00::5"], "a", "DNS:a, IP Address:10.0.0.5, IP Address:FD00:0:0:0:0:0:0:5"),
    ],
)
def test_it_makes_what_a_member_needs(tmp_path: Path, host: list[str], member: str, names: str) -> None:
    assert made(tmp_path, "certs", *host).startswith(f"made certs/{member} for {member}")
    folder = tmp_path / "certs" / member
    assert sorted(path.name for path in folder.iterdir()) == ["ca.pem", "cert.pem", "key.pem"]
    assert load_security(SecurityConfig(*(str(folder / f"{name}.pem") for name in FILES))).tls
    assert names in openssl("x509", "-noout", "-ext", "subjectAltName", "-in", folder / "cert.pem")


def test_only_the_owner_reads_what_it_makes_and_the_key_of_the_ca_is_with_no_member(tmp_path: Path) -> None:
    made(tmp_path, "certs", "a", "b")
    folder = tmp_path / "certs"
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "ca-key.pem", "ca.pem"]
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    secret = (folder / "ca-key.pem").read_text().split("-----")[2]
    assert not any(secret in path.read_text() for path in folder.rglob("*.pem") if path.name != "ca-key.pem")


def test_each_member_has_a_key_of_its_own_and_a_later_one_the_same_ca(tmp_path: Path) -> None:
    made(tmp_path, "certs", "a", "b")
    before = contents(tmp_path / "certs")
    made(tmp_path, "certs", "c")
    after = contents(tmp_path / "certs")
    assert {name: after[name] for name in before} == before
    assert len({after[f"{member}/key.pem"] for member in "abc"}) == 3
    assert len({after[f"{member}/ca.pem"] for member in "abc"}) == 1
    folder = tmp_path / "certs"
    assert trusts(folder / "a/ca.pem", folder / "c/cert.pem") == [True]


def test_a_slow_clock_elsewhere_accepts_it_and_days_are_those_asked_for(tmp_path: Path) -> None:
    made(tmp_path, "certs", "a", "--days", "7")
    for file, days in (("a/cert.pem", 7), ("ca.pem", 7300)):
        text = openssl("x509", "-noout", "-dates", "-in", tmp_path / "certs" / file)
        begin, end = (
            datetime.fromtimestamp(ssl.cert_time_to_seconds(line.partition("=")[2]), timezone.utc)
            for line in text.splitlines()
        )
        now = datetime.now(timezone.utc)
        assert now - begin > timedelta(minutes=50)
        assert abs(end - now - timedelta(days=days)) < timedelta(hours=1)


def test_renewed_files_are_new_for_the_same_names_and_have_the_owner_and_mode_of_the_old(tmp_path: Path) -> None:
    made(tmp_path, "certs", "a,10.0.0.5,fd00::5", "b")
    folder = tmp_path / "certs"
    (folder / "a/key.pem").chmod(0o640)
    before, inodes = contents(folder), {path: path.stat().st_ino for path in folder.rglob("*.pem")}
    with (folder / "a/cert.pem").open("rb") as opened:
        made(tmp_path, "--renew", "certs", "a")
        assert opened.read() == before["a/cert.pem"], "it is not written over, but replaced"
    after = contents(folder)
    assert {name for name in before if before[name] != after[name]} == {"a/cert.pem", "a/key.pem"}
    assert (folder / "a/cert.pem").stat().st_ino != inodes[folder / "a/cert.pem"]
    assert stat.S_IMODE((folder / "a/key.pem").stat().st_mode) == 0o640
    names = "DNS:a, IP Address:10.0.0.5, IP Address:FD00:0:0:0:0:0:0:5"
    assert names in openssl("x509", "-noout", "-ext", "subjectAltName", "-in", folder / "a/cert.pem")
    assert load_security(SecurityConfig(*(str(folder / "b" / f"{name}.pem") for name in FILES))).tls
    made(tmp_path, "--renew", "certs")
    assert contents(folder)["b/key.pem"] != before["b/key.pem"]


def test_a_new_ca_is_trusted_before_it_signs_and_the_old_one_until_nothing_of_it_is_left(tmp_path: Path) -> None:
    made(tmp_path, "certs", "a", "b")
    folder, old = tmp_path / "certs", tmp_path / "old"
    shutil.copytree(folder, old)
    made(tmp_path, "--new-ca", "certs")
    both = [folder / "a/ca.pem", folder / "b/ca.pem", folder / "ca.pem"]
    assert {path.read_bytes() for path in both} == {(folder / "ca.pem").read_bytes()}
    assert (folder / "a/cert.pem").read_bytes() == (old / "a/cert.pem").read_bytes()

    code, out, err = make(tmp_path, "--drop-old-ca", "certs")
    said = f"{PROG}: certs/a has a certificate of the old CA; --renew makes a new one\n"
    assert (code, out, err) == (2, "", said)

    made(tmp_path, "--renew", "certs")
    new = [folder / "a/cert.pem", folder / "b/cert.pem"]
    assert trusts(folder / "a/ca.pem", *new, old / "a/cert.pem") == [True] * 3
    assert trusts(old / "a/ca.pem", *new) == [False] * 2
    made(tmp_path, "--drop-old-ca", "certs")
    for ca in both:
        assert trusts(ca, *new, old / "a/cert.pem") == [True, True, False]


def test_it_writes_over_nothing(tmp_path: Path) -> None:
    made(tmp_path, "certs", "a")
    before = contents(tmp_path)
    code, out, err = make(tmp_path, "certs", "b", "a")
    assert (code, out) == (2, "")
    assert err == f"{PROG}: certs/a is there; --renew makes a new certificate of it\n"
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "FOLDER is missing: launch/make-certs.sh FOLDER [HOST...]; --help says more"),
        (["--renewed", "certs"], "unknown option --renewed; --help lists them"),
        (["certs", "a b"], "'a b' is neither a name nor an address"),
        (["certs", "a\nb"], "'a\nb' is neither a name nor an address"),
        (["certs", "../a"], "'../a' is neither a name nor an address"),
        (["certs", "a,,b"], "'' is neither a name nor an address"),
        (["certs", "x,IP:10.0.0.5"], "'IP:10.0.0.5' is neither a name nor an address"),
        (["certs", "a", "b", "a"], "a is named twice"),
        (["certs", "10.0.0.555"], "openssl refuses, as it says above"),
        (["certs", "--days", "3651"], "--days must be a number from 1 to 3650, got '3651'"),
        (["certs", "--days"], "--days must be a number from 1 to 3650, got ''"),
        (["--renew", "certs"], "there is no folder certs in which files can be made"),
        (["--new-ca", "certs", "a"], "--new-ca takes no host, it is for all members"),
    ],
)
def test_a_mistake_leaves_nothing_behind(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    code, out, err = make(tmp_path, *arguments)
    assert (code, out) == (2, "")
    assert err.endswith(f"{PROG}: {complaint}\n") and (err.startswith(PROG) or "openssl" in complaint)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--renew", "certs", "b"], "certs has no member b"),
        (["certs", "b", "--days=3650"], "the CA in certs ends within 3650 days; --new-ca makes another"),
    ],
)
def test_a_mistake_changes_nothing(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    script = (ROOT / PROG).read_text()
    (tmp_path / "short.sh").write_text(script.replace("CA_DAYS=7300", "CA_DAYS=3000"))
    assert subprocess.run(["bash", "short.sh", "certs", "a"], cwd=tmp_path, capture_output=True).returncode == 0
    before = contents(tmp_path)
    assert make(tmp_path, *arguments) == (2, "", f"{PROG}: {complaint}\n")
    assert contents(tmp_path) == before


def test_a_ca_whose_key_is_elsewhere_signs_nothing(tmp_path: Path) -> None:
    made(tmp_path, "certs", "a")
    (tmp_path / "certs" / "ca-key.pem").unlink()
    said = f"{PROG}: certs has a CA without its key, ca-key.pem; make another folder\n"
    assert make(tmp_path, "certs", "b") == (2, "", said)


def test_help_says_what_it_takes(tmp_path: Path) -> None:
    out = made(tmp_path, "--help")
    assert out.startswith("Certificates for mutual TLS") and all(word in out for word in ("--renew", "--days N"))
