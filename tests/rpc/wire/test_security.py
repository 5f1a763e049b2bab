"""Certificates and tokens that change while a process runs: each change is in force without a restart."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from shutil import copyfile

import pytest

from psruntime.config.process import SecurityConfig, split_address
from psruntime.core.members.membership import Role
from psruntime.errors import CredentialsError, UnreachableError, UsageError
from psruntime.rpc.wire.security import DAY_S, Keeping, load_security
from tests.rpc.conftest import PAIR, Events, a_beat, a_join
from tests.support.certificates import TOKEN, Authority
from tests.support.docs import ROOT

OTHER = "another-token-of-the-job"


def secret(path: Path, *lines: str) -> str:
    path.touch(mode=0o600)
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


class Files:
    """Those of one member, which are replaced under the same names, as an operator does."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        folder.mkdir()
        self.config = SecurityConfig(*(str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem")))
        self.issue(authority)
        self.trust(authority)
        self.security = load_security(self.config)
        self.events = Events()
        self.keeping = Keeping(self.security, self.events)

    def issue(self, authority: Authority, **options: datetime) -> None:
        new = authority.files(**options)
        for name in ("tls_cert", "tls_key"):
            beside = f"{getattr(self.config, name)}.next"
            copyfile(getattr(new, name), beside)
            os.chmod(beside, 0o600)
            os.replace(beside, getattr(self.config, name))

    def trust(self, *authorities: Authority) -> None:
        Path(self.config.tls_ca).write_bytes(b"".join(each.ca_file.read_bytes() for each in authorities))


@pytest.fixture
def files(tmp_path: Path, authority: Authority) -> Callable[[str], Files]:
    return lambda name: Files(tmp_path / name, authority)


def number(address: str, files: Files) -> int:
    """The serial number of the certificate that a port shows."""
    host, port = split_address(address)
    tls = files.security.tls
    with socket.create_connection((host, port), 10) as tcp, tls.caller.wrap_socket(tcp, server_hostname=host) as shown:
        return int(shown.getpeercert()["serialNumber"], 16)


def test_a_change_of_the_ca_step_by_step_ends_no_call(stage, files, authority, stranger) -> None:
    """As an operator does it: all trust both CAs, then each has a certificate of the new one, then all trust that."""
    ps, member = files("ps"), files("member")
    server = stage.coordinator(PAIR, security=ps.security)
    client = stage.client(server, member.security)
    joined = client.join(a_join(Role.PS, 0))
    shown = [number(f"127.0.0.1:{server.port}", member)]
    steps = [
        *(lambda each=each: each.trust(authority, stranger) for each in (ps, member)),
        *(lambda each=each: each.issue(stranger) for each in (ps, member)),
        *(lambda each=each: each.trust(stranger) for each in (ps, member)),
    ]
    for step in steps:
        step()
        for each in (ps, member):
            each.keeping.look()
        assert client.heartbeat(a_beat(joined, Role.PS, 0)).incarnation == joined.incarnation
        shown.append(number(f"127.0.0.1:{server.port}", member))
    assert shown[0] == shown[2] != shown[3] == shown[-1]
    assert len(ps.events.named("credentials_read")) == 3
    with pytest.raises(CredentialsError):
        stage.client(server, authority.security()).get_job()


def test_what_was_read_before_is_not_read_anew(files, authority) -> None:
    """As where a file is replaced between the look at its version and the read."""
    at = files("ps")
    before = at.security.tls
    os.utime(at.config.tls_key, (1, 1))
    at.keeping.look()
    assert at.security.tls is before and not at.events.named("credentials_read")
    at.issue(authority)
    at.keeping.look()
    assert at.security.tls != before and len(at.events.named("credentials_read")) == 1


def test_a_certificate_whose_key_is_not_there_yet_changes_nothing(files, authority) -> None:
    at = files("ps")
    before = at.security.tls
    copyfile(authority.files().tls_cert, at.config.tls_cert)
    at.keeping.look()
    assert at.security.tls is before
    assert not at.events.named("credentials_refused")  # the next look may find the key
    for _ in range(3):
        at.keeping.look()
    (refused,) = at.events.named("credentials_refused")
    assert refused["reason"] == (
        f"--tls-key {at.config.tls_key} is not the key of --tls-cert {at.config.tls_cert}; "
        "what was read before stays in force"
    )
    at.issue(authority)
    at.keeping.look()
    assert at.security.tls is not before


@pytest.mark.parametrize("change", ["gone", "open to others", "empty", "of another CA"])
def test_what_cannot_be_used_leaves_what_there_was(files, stranger, change) -> None:
    at = files("ps")
    before = at.security.tls
    if change == "gone":
        os.unlink(at.config.tls_key)
    elif change == "open to others":
        os.chmod(at.config.tls_key, 0o644)
        os.utime(at.config.tls_key, (1, 1))
    elif change == "empty":
        Path(at.config.tls_cert).write_bytes(b"")
    else:
        at.issue(stranger)
    for _ in range(2):
        at.keeping.look()
    assert at.security.tls is before
    assert len(at.events.named("credentials_refused")) == 1


def test_the_end_of_a_certificate_is_logged_at_the_start_and_when_it_is_near(files, authority) -> None:
    at = files("ps")
    day = datetime.now(timezone.utc).replace(microsecond=0)
    at.issue(authority, not_after=day + timedelta(days=40))
    now_s = day.timestamp()
    at.security.take(load_security(at.config))
    keeping = Keeping(at.security, at.events, lambda: now_s)
    for _ in range(42 * 4):
        keeping.notice_expiry()
        now_s += DAY_S / 4
    assert [each["days"] for each in at.events.named("certificate")] == [40.0, 30.0, 7.0, 1.0, 0.0]
    assert {each["file"] for each in at.events.named("certificate")} == {at.config.tls_cert}
    assert {each["expires"][:10] for each in at.events.named("certificate")} == {f"{day + timedelta(days=40):%Y-%m-%d}"}


def test_tokens_are_changed_without_an_end(stage, tmp_path) -> None:
    """ "new, old", then "new": a member that has not read its file yet is served, or tries again."""
    path = secret(tmp_path / "token", TOKEN)
    config = SecurityConfig(token_file=path)
    ps, member = load_security(config), load_security(config)
    of_ps, of_member = (Keeping(each, stage.events) for each in (ps, member))
    server = stage.coordinator(PAIR, security=ps)
    client = stage.client(server, member)
    joined = client.join(a_join(Role.PS, 0))

    def beats() -> bool:
        return client.heartbeat(a_beat(joined, Role.PS, 0)).incarnation == joined.incarnation

    secret(Path(path), OTHER, TOKEN)
    of_member.look()  # which sends the new one before the coordinator knows it
    assert member.tokens == (OTHER, TOKEN)
    assert beats()
    of_ps.look()
    assert beats()
    secret(Path(path), OTHER)
    of_ps.look()  # the coordinator knows the old one no more, and the member sends the new one already
    assert beats()
    secret(Path(path), "a-third-token-that-comes-at-once")
    of_ps.look()
    with pytest.raises(UnreachableError, match="another token than the job's"):
        beats()  # no CredentialsError: the member tries again
    of_member.look()
    assert beats()
    assert load_security(config).tokens == ("a-third-token-that-comes-at-once",)


def test_a_token_of_a_pipe_is_read_once(tmp_path, authority) -> None:
    ends = os.pipe()
    os.write(ends[1], TOKEN.encode() + b"\n")
    os.close(ends[1])
    ca = tmp_path / "ca.pem"
    copyfile(authority.ca_file, ca)
    try:
        config = replace(authority.files(), tls_ca=str(ca), token_file=f"/dev/fd/{ends[0]}")
        security = load_security(config)
        assert security.tokens == (TOKEN,)
        events = Events()
        keeping = Keeping(security, events)
        ca.write_bytes(2 * ca.read_bytes())
        keeping.look()
        assert security.tokens == (TOKEN,)
        assert events.named("credentials_read")
    finally:
        os.close(ends[0])


@pytest.mark.parametrize(
    ("token", "readers", "reason"),
    [
        ([], [OTHER], "--read-token-file is for a job with a token: give --token-file, too"),
        ([TOKEN], [OTHER, TOKEN], "--read-token-file FILE has a token of --token-file: make another one"),
        ([TOKEN] * 17, [], "--token-file FILE has 17 lines: at most 16 tokens, one in each, are valid"),
    ],
)
def test_tokens_that_do_not_fit(tmp_path, token, readers, reason) -> None:
    files = {"token_file": token, "read_token_file": readers}
    paths = {name: secret(tmp_path / name, *lines) for name, lines in files.items() if lines}
    with pytest.raises(UsageError) as refused:
        load_security(SecurityConfig(**paths))
    said = str(refused.value)
    for path in paths.values():
        said = said.replace(path, "FILE")
    assert said == reason


SHOWN = """
import os, sys
from psruntime.config.process import SecurityConfig
from psruntime.rpc.wire.security import load_security
security = load_security(SecurityConfig.of({"token_file": sys.argv[2]}))
assert security.tokens == ("0123456789abcdef-of-the-job",)
for name in ("cmdline", "environ"):
    try:
        print(name, open(f"/proc/self/{name}").read().replace("\\0", " "))
    except OSError as error:
        print(name, error.strerror)
try:
    open("/proc/self/mem", "rb").close()
    print("memory is open")
except OSError as error:
    print("memory", error.strerror)
print("sockets and files are found", len(os.listdir("/proc/self/fd")) > 2, os.readlink("/proc/self/fd/0"))
print("for children", os.environ["PSRUNTIME_TOKEN"], os.environ["PSRUNTIME_TLS_KEY"])
print("for their environment", os.popen("echo $PSRUNTIME_TOKEN").read())
"""


def test_the_process_shows_no_secret_and_no_place_of_one(tmp_path) -> None:
    path = secret(tmp_path / "token", TOKEN)
    environment = {
        **os.environ, "PSRUNTIME_TOKEN": "not-used-but-secret", "PSRUNTIME_TLS_KEY": "", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    script = tmp_path / "shown.py"
    script.write_text(SHOWN)
    words = ["--token-file", path, f"--token-file={path}", f"of {path}", "other"]
    done = subprocess.run(
        [sys.executable, script, *words], env=environment, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=60, check=True,
    )  # fmt: skip
    shown = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("cmdline", "environ")))
    stars = "*" * len(path)
    assert shown["cmdline"].endswith(f" --token-file {stars} --token-file={stars} of {path} other ")  # words alone
    assert f"PSRUNTIME_TOKEN={'*' * len('not-used-but-secret')} " in shown["environ"]
    assert "not-used-but-secret" not in shown["environ"]
    assert "sockets and files are found True /dev/null" in done.stdout
    assert "for children not-used-but-secret " in done.stdout
    assert "for their environment not-used-but-secret" in done.stdout
    if os.geteuid():
        assert "memory Permission denied" in done.stdout


def test_a_context_of_the_web_is_the_newest(files, authority) -> None:
    at = files("ps")
    first = at.security.web()
    assert isinstance(first, ssl.SSLContext)
    at.issue(authority)
    at.keeping.look()
    assert at.security.web() is not first
