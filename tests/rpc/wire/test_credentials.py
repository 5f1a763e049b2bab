"""Files of certificates, keys and tokens: each mistake in them is one line before anybody is reached."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as pem
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from psruntime.config.process import SecurityConfig
from psruntime.errors import UsageError
from psruntime.rpc.wire.security import OPEN, load_security
from tests.support import worlds
from tests.support.certificates import TOKEN, YESTERDAY, trusting
from tests.support.docs import ROOT

DAY = timedelta(days=1)


@pytest.fixture
def junk(tmp_path: Path) -> str:
    return private(tmp_path / "junk", b"hello\n")


def private(path: Path, contents: bytes) -> str:
    path.touch(mode=0o600)
    path.write_bytes(contents)
    return str(path)


def refusal(files: SecurityConfig, **options: bool) -> str:
    with pytest.raises(UsageError) as refused:
        load_security(files, **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_nothing_given_is_nothing_protected():
    assert load_security(SecurityConfig()) == OPEN


def test_what_is_given_is_loaded_once(authority, tmp_path):
    files = replace(authority.files(), token_file=private(tmp_path / "token", TOKEN.encode() + b"\n"))
    security = load_security(files)
    Path(files.tls_key).unlink()
    Path(files.token_file).unlink()
    assert security.tokens == (TOKEN,)
    assert security.tls and not security.tls.own_fault()


def test_no_secret_is_printed(authority, tmp_path):
    security = load_security(replace(authority.files(), token=TOKEN))
    assert TOKEN not in repr(security) + repr(SecurityConfig(token=TOKEN))
    assert "PRIVATE KEY" not in repr(security)


@pytest.mark.parametrize("setting", ["tls_ca", "tls_cert", "tls_key", "token_file"])
def test_a_file_that_cannot_be_read(authority, setting):
    flag = "--" + setting.replace("_", "-")
    files = replace(authority.files(), **{setting: "/no/such.pem"})
    assert refusal(files) == f"{flag} /no/such.pem cannot be read: No such file or directory"


@pytest.mark.parametrize("setting", ["tls_key", "token_file"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_secret_that_is_open_to_others(authority, tmp_path, setting, mode):
    files = replace(authority.files(), token_file=private(tmp_path / "token", TOKEN.encode()))
    path = getattr(files, setting)
    os.chmod(path, mode)
    flag = "--" + setting.replace("_", "-")
    assert refusal(files) == f"{flag} {path} is a secret and open to others (mode {mode:04o}): chmod 600 {path}"


READ_ONLY = 'mount --bind "$0" "$1" && mount -o remount,ro,bind "$1" && exec "$2" -c "$3" "$1/token"'
READ = """
import sys
from psruntime.rpc.wire.job_token import read_secret_file
print(read_secret_file("--token-file", sys.argv[1]).decode())
"""


@pytest.mark.skipif(bool(worlds.refusal()), reason=worlds.refusal())
def test_a_secret_on_a_read_only_file_system_may_be_open(tmp_path):
    """Nobody could change its mode there."""
    folder, mounted = tmp_path / "folder", tmp_path / "mounted"
    for path in (folder, mounted):
        path.mkdir()
    os.chmod(private(folder / "token", TOKEN.encode()), 0o644)
    command = ["unshare", "-m", "sh", "-c", READ_ONLY, str(folder), str(mounted), sys.executable, READ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"{TOKEN}\n", done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_secret_of_root_may_be_read_by_a_group_and_one_of_another_user_is_refused(tmp_path, monkeypatch):
    """As a mounted secret of Kubernetes, which a group reads."""
    path = private(tmp_path / "token", TOKEN.encode())
    os.chmod(path, 0o640)
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    assert load_security(SecurityConfig(token_file=path)).tokens == (TOKEN,)
    for mode in (0o644, 0o660, 0o641):
        os.chmod(path, mode)
        assert refusal(SecurityConfig(token_file=path)).endswith(f"open to others (mode {mode:04o}): chmod 600 {path}")
    os.chown(path, 12345, 0)
    os.chmod(path, 0o600)
    said = refusal(SecurityConfig(token_file=path))
    assert said.endswith("is a secret that belongs to another user (12345), who can change it: make your own copy")


def test_files_with_something_else_in_them(authority, junk):
    files = authority.files()
    assert refusal(replace(files, tls_ca=junk)) == f"--tls-ca {junk} has no certificate in PEM form"
    assert refusal(replace(files, tls_cert=junk)) == f"--tls-cert {junk} has no certificate in PEM form"
    assert refusal(replace(files, tls_key=junk)) == f"--tls-key {junk} has no private key in PEM form"
    mixed_up = replace(files, tls_cert=files.tls_key)
    assert refusal(mixed_up) == f"--tls-cert {files.tls_key} has no certificate in PEM form"


def test_a_key_of_another_certificate(authority, tmp_path):
    files, other = authority.files(), authority.files()
    expected = "--tls-key KEY is not the key of --tls-cert CERT".replace("CERT", files.tls_cert)
    assert refusal(replace(files, tls_key=other.tls_key)) == expected.replace("KEY", other.tls_key)
    path = key_file(tmp_path, pem.NoEncryption())
    assert refusal(replace(files, tls_key=path)) == expected.replace("KEY", path)


def test_an_encrypted_key_is_refused_without_a_question(authority, tmp_path):
    path = key_file(tmp_path, pem.BestAvailableEncryption(b"secret"))
    files = replace(authority.files(), tls_key=path)
    assert refusal(files) == f"--tls-key {path} is encrypted; psruntime takes a key without a password"


def key_file(folder: Path, encryption: pem.KeySerializationEncryption, key: Any = None) -> str:
    """A file with this key, or else with a new one of the other kind (RSA) than those of the certificates."""
    key = key or rsa.generate_private_key(65537, 2048)
    return private(folder / "key.pem", key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, encryption))


def test_a_certificate_that_its_own_ca_would_refuse(authority, stranger):
    expired, foreign = authority.files(not_after=YESTERDAY), trusting(authority.files(), stranger)
    line = "--tls-cert CERT is of no use with --tls-ca CA: "
    for files, why in ((expired, "certificate has expired"), (foreign, "another CA signed it")):
        expected = line.replace("CERT", files.tls_cert).replace("CA:", f"{files.tls_ca}:") + why
        assert refusal(files) == expected
        assert refusal(files, serves=False) == expected


def test_a_certificate_for_clients_only_is_enough_for_who_serves_nobody(tmp_path):
    path = tmp_path / "own.pem"
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "me")])
    now = datetime.now(timezone.utc)
    own = x509.CertificateBuilder(name, name, key.public_key(), 1, now - DAY, now + DAY)
    own = own.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=True)
    path.write_bytes(own.sign(key, hashes.SHA256()).public_bytes(pem.Encoding.PEM))
    files = SecurityConfig(str(path), str(path), key_file(tmp_path, pem.NoEncryption(), key))
    assert load_security(files, serves=False).tls
    assert refusal(files).endswith(": unsuitable certificate purpose")


BAD_TOKENS = [
    b"",
    b"\n",
    b"short",
    b"0123456789abcde",
    b"two lines of a\ntoken here",
    b"with a space in it",
    b"x" * 513,
]


@pytest.mark.parametrize(
    "token", [*BAD_TOKENS, "schlüssel-der-arbeit".encode(), b"\x00" * 16, TOKEN.encode() + b"\r\n"]
)
def test_a_file_without_a_token(tmp_path, token):
    path = private(tmp_path / "token", token)
    said = refusal(SecurityConfig(token_file=path))
    assert said.startswith(f"--token-file {path}")
    assert "is no token of 16 to 512 visible ASCII characters" in said
    assert not token.strip() or token.strip().decode("utf-8") not in said


def test_a_bad_token_of_the_environment():
    assert refusal(SecurityConfig(token="short")).startswith("PSRUNTIME_TOKEN is no token of 16 to 512")
    assert refusal(SecurityConfig(token="\udcff" * 20)).startswith("PSRUNTIME_TOKEN is no token of 16 to 512")


def test_the_file_goes_over_the_environment(tmp_path):
    path = private(tmp_path / "token", b"x" * 16)
    assert load_security(SecurityConfig(token_file=path, token=TOKEN)).tokens == ("x" * 16,)
