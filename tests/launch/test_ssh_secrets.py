"""launch/ssh.sh makes certificates and a token, which each process finds by its environment, and leaves nothing."""

from __future__ import annotations

import re
import shutil
import signal
import stat
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from psruntime.config.process import SecurityConfig
from psruntime.rpc.wire.security import load_security
from tests.support.fake_ssh import Call, Launcher
from tests.support.polling import await_line

pytestmark = [
    pytest.mark.usefixtures("sigint_as_in_a_terminal"),
    pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl: apt-get install openssl"),
]
TLS = ("PSRUNTIME_TLS_CA", "PSRUNTIME_TLS_CERT", "PSRUNTIME_TLS_KEY")
TOKEN = "PSRUNTIME_TOKEN_FILE"


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path)
    yield made
    made.kill_all()


def hosts_in(pem: str) -> list[str]:
    """What a certificate is for."""
    done = subprocess.run(
        ["openssl", "x509", "-noout", "-ext", "subjectAltName"], input=pem, capture_output=True, text=True, check=True
    )
    return re.findall(r"(?:DNS|IP Address):([^,\s]+)", done.stdout)


def text(call: Call, name: str) -> str:
    return call.secrets[name][2]


def folders(launcher: Launcher, err: str) -> set[Path]:
    """Those of the processes, and that of the script."""
    made = {Path(path).parent for call in launcher.calls() for path, _, _ in call.secrets.values()}
    return made | {Path(path).parent for path in re.findall(r"source (\S+)", err)}


def test_each_process_has_the_certificate_of_its_host_and_the_token_of_the_job(launcher: Launcher) -> None:
    code, _, err = launcher.run("a,me@b=10.0.0.6,fd00::5", "--ps=2")
    assert code == 0, err
    calls = {call.task: call for call in launcher.calls()}
    named = {name: hosts_in(text(call, TLS[1])) for name, call in calls.items()}
    of_b, of_c = ["10.0.0.6", "b"], ["FD00:0:0:0:0:0:0:5"]
    assert named == {"ps-0": ["a"], "ps-1": of_b, "worker-0": ["a"], "worker-1": of_b, "worker-2": of_c}
    assert len({text(call, TOKEN) for call in calls.values()}) == 1
    assert len({text(call, TLS[2]) for call in calls.values()}) == 3, "a key for each host"
    assert launcher.hosts() == ["a", "a", "fd00::5", "me@b", "me@b"]
    assert value(calls["ps-1"].words, "--ps-hosts") == "a:2222,10.0.0.6:0"
    for call in calls.values():
        paths = {Path(path) for path, mode, _ in call.secrets.values() if mode == 0o600}
        assert len(paths) == 4 and len({path.parent for path in paths}) == 1
    assert len(folders(launcher, err)) == 6


def value(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_processes_accept_what_they_are_given(launcher: Launcher) -> None:
    assert launcher.run("a")[0] == 0
    call, other = launcher.calls()
    paths = [launcher.folder / name for name in TLS]
    for path in paths:
        path.write_text(text(call, path.name))
        path.chmod(0o600)
    (launcher.folder / TOKEN).write_text(text(call, TOKEN))
    (launcher.folder / TOKEN).chmod(0o600)
    loaded = load_security(SecurityConfig(*map(str, paths), token_file=str(launcher.folder / TOKEN)))
    assert loaded.tls and loaded.tokens and text(other, TLS[0]) == text(call, TLS[0])


def test_nothing_secret_is_on_a_command_line_or_in_the_output(launcher: Launcher) -> None:
    launcher.plan(ps_0="waits143", worker_0="waits75")
    process = launcher.start("a")
    launcher.await_calls(2)
    call, _ = launcher.calls()
    lines = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in launcher.commands.running())
    assert b"--lifeline" in lines
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    token, key = text(call, TOKEN).strip(), text(call, TLS[2]).splitlines()[1]
    for secret in (token, key):
        assert secret not in out + err and secret.encode() not in lines
        assert b64encode(secret.encode())[4:-4] not in lines


@pytest.mark.parametrize("flag", ["--insecure", "--tls-ca=/etc/ca.pem", "--tls-ca"])
def test_with_flags_of_the_user_nothing_is_made(launcher: Launcher, flag: str) -> None:
    code, _, err = launcher.run("a", flag)
    assert code == 0 and "source" not in err
    assert [call.secrets for call in launcher.calls()] == [{}, {}]


def test_a_process_that_is_started_again_has_them_again(launcher: Launcher) -> None:
    launcher.plan(ps_0="waits0", worker_0="75 0")
    code, _, err = launcher.run("a")
    assert code == 0, err
    first, second = (call for call in launcher.calls() if call.task == "worker-0")
    assert [text(first, name) for name in (*TLS, TOKEN)] == [text(second, name) for name in (*TLS, TOKEN)]
    assert first.secrets[TOKEN][0] != second.secrets[TOKEN][0]
    assert not any(folder.exists() for folder in folders(launcher, err))


def test_the_variables_for_status_are_in_a_file_of_the_user_alone(launcher: Launcher) -> None:
    launcher.plan(ps_0="waits143", worker_0="waits75")
    process = launcher.start("a,b", "--coordinator-port=4711", "--workers=1")
    launcher.await_calls(2)
    said = await_line(process.stderr, "source ")
    file = Path(said.split()[-1])
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    show = f"source {file} && cat $PSRUNTIME_TLS_CA $PSRUNTIME_TLS_CERT $PSRUNTIME_TLS_KEY $PSRUNTIME_TOKEN_FILE"
    shown = subprocess.run(
        ["bash", "-c", f"{show} && echo $PSRUNTIME_COORDINATOR"], capture_output=True, text=True, check=True
    )
    (call,) = (call for call in launcher.calls() if call.task == "ps-0")
    assert shown.stdout == "".join(text(call, name) for name in (*TLS, TOKEN)) + "a:4711\n"
    assert not list(file.parent.rglob("ca-key.pem"))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert not file.parent.exists()


@pytest.mark.parametrize("ending", ["done", "failed", "stopped", "ended at once", "killed"])
def test_nothing_is_left_at_the_end(launcher: Launcher, ending: str) -> None:
    doing = {"done": "0", "failed": "1", "ended at once": "hangs"}.get(ending, "waits143")
    launcher.plan(ps_0=doing if ending != "failed" else "waits143", worker_0=doing)
    process = launcher.start("a")
    launcher.await_calls(2)
    err = await_line(process.stderr, "source ")
    assert ending in ("done", "failed") or all(folder.exists() for folder in folders(launcher, err))
    if ending == "killed":
        process.kill()
    elif ending in ("stopped", "ended at once"):
        process.send_signal(signal.SIGTERM)
    if ending == "ended at once":
        await_line(process.stderr, "a second signal ends it at once")
        process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    launcher.await_end()
    assert not any(folder.exists() for folder in folders(launcher, err))


def test_a_host_without_a_proper_name_is_refused_before_anything_starts(launcher: Launcher) -> None:
    code, _, err = launcher.run("10.0.0.555")
    assert code == 2 and not launcher.calls() and "10.0.0.555" in err
