"""Flags, environment and defaults of what protects the control plane."""

from __future__ import annotations

from pathlib import Path

import pytest

from psruntime import ps, worker
from psruntime.commands import status
from psruntime.config.process import SecurityConfig
from psruntime.errors import UsageError
from tests.support.certificates import Authority

FILES = {"tls_ca": "a", "tls_cert": "c", "tls_key": "k", "token_file": "t"}
ENVIRONMENT = {"PSRUNTIME_TLS_CA": "A", "PSRUNTIME_TLS_CERT": "C", "PSRUNTIME_TLS_KEY": "K", "PSRUNTIME_TOKEN": "T"}
TOGETHER = "--tls-ca, --tls-cert, --tls-key belong together; missing: "


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the processes whose work would have begun; nothing runs, and the environment is empty."""
    started: list[str] = []
    for module in (ps, worker):
        monkeypatch.setattr(module, "run", lambda *_, name=module.__name__: started.append(name) or 0)
    for name in (*ENVIRONMENT, "PSRUNTIME_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    return started


def test_what_is_not_given_comes_from_the_environment() -> None:
    assert SecurityConfig.of({}, {}) == SecurityConfig()
    assert SecurityConfig.of(FILES, {}) == SecurityConfig(**FILES)
    assert SecurityConfig.of({"tls_ca": "", "tls_key": "k"}, ENVIRONMENT) == SecurityConfig("A", "C", "k", token="T")
    assert SecurityConfig.of(FILES, ENVIRONMENT) == SecurityConfig(**FILES, token="T")
    assert SecurityConfig.of({}, {"PSRUNTIME_TOKEN_FILE": "t"}) == SecurityConfig(token_file="t")


@pytest.mark.parametrize(
    ("given", "missing"),
    [({"tls_ca": "a"}, "--tls-cert, --tls-key"), ({"tls_ca": "a", "tls_key": "k"}, "--tls-cert")],
)
def test_the_three_files_of_tls_belong_together(given: dict[str, str], missing: str) -> None:
    with pytest.raises(UsageError) as refused:
        SecurityConfig(**given)
    assert str(refused.value) == TOGETHER + missing


@pytest.mark.parametrize("main", [ps.main, worker.main, status.main], ids=lambda main: main.__module__)
def test_every_command_says_it_in_one_line(main, capsys: pytest.CaptureFixture[str], started: list[str]) -> None:
    index = [] if main is status.main else ["--index", "0"]
    prog = f"psruntime {main.__module__.rpartition('.')[2]}"
    assert main([*index, "--tls-ca", "a"]) == 2
    assert main([*index, "--token-file", "/no/token"]) == 2
    assert capsys.readouterr() == (
        "",
        f"{prog}: {TOGETHER}--tls-cert, --tls-key\n"
        f"{prog}: --token-file /no/token cannot be read: No such file or directory\n",
    )
    assert not started


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "[::1]"])
def test_without_tls_the_coordinator_serves_this_machine(host: str, started: list[str]) -> None:
    assert ps.main(["--index", "0", "--coordinator", f"{host}:0"]) == 0
    assert started == ["psruntime.ps"]


@pytest.mark.parametrize("address", ["0.0.0.0:0", "10.0.0.5:2222", "[::]:0", "[2001:db8::5]:2222"])
def test_without_tls_the_coordinator_serves_no_other_machine(
    address: str, capsys: pytest.CaptureFixture[str], started: list[str]
) -> None:
    argv = ["--index", "0", "--coordinator", address]
    assert ps.main(argv) == 2
    assert capsys.readouterr().err == (
        f"psruntime ps: coordinator {address} would serve other machines without TLS: give --tls-ca, --tls-cert and "
        "--tls-key, or --insecure if all that reach it may change the job (docs/security.md)\n"
    )
    assert not started
    assert ps.main([*argv, "--insecure"]) == 0
    assert started == ["psruntime.ps"]


def test_with_tls_it_serves_whom_it_is_told_to(tmp_path: Path, started: list[str]) -> None:
    files = Authority(tmp_path).files()
    tls = [f"--tls-ca={files.tls_ca}", f"--tls-cert={files.tls_cert}", f"--tls-key={files.tls_key}"]
    assert ps.main(["--index", "0", "--coordinator", "10.0.0.5:2222", *tls]) == 0
    assert started == ["psruntime.ps"]


def test_a_token_alone_does_not_open_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], started: list[str]
) -> None:
    """Without TLS whoever listens to the network would read it."""
    monkeypatch.setenv("PSRUNTIME_TOKEN", "0123456789abcdef")
    assert ps.main(["--index", "0", "--coordinator", "10.0.0.5:2222"]) == 2
    assert "would serve other machines without TLS" in capsys.readouterr().err


def test_a_name_that_nobody_knows_is_waited_for_and_checked_then(started: list[str]) -> None:
    assert ps.main(["--index", "0", "--coordinator", "no-such-host.invalid:0"]) == 0
    assert started == ["psruntime.ps"]


def test_another_process_may_call_any_coordinator(started: list[str]) -> None:
    assert ps.main(["--index", "1", "--coordinator", "10.0.0.5:2222", "--insecure"]) == 0
    assert worker.main(["--index", "0", "--coordinator", "10.0.0.5:2222"]) == 0
    assert started == ["psruntime.ps", "psruntime.worker"]
