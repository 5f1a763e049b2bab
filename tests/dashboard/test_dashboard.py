"""The dashboard's process beside a real coordinator: one question a second, any number of browsers, nothing left."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from bokeh.client import pull_session

from psruntime.commands import dashboard
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import WorkerBeat, WorkerStats
from psruntime.rpc.wire.security import Security
from tests.rpc.conftest import PAIR, Stage, stage  # noqa: F401
from tests.support.certificates import TOKEN
from tests.support.commands import Commands
from tests.support.polling import poll_until


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(tmp_path)
    yield commands
    for pid in commands.running():
        subprocess.run(["kill", "-9", str(pid)], check=False)
    poll_until(lambda: not commands.running(), 10, "the end of all processes")


def started(commands: Commands, coordinator: str, *flags: str) -> tuple[subprocess.Popen[str], str]:
    """(the process, its address)."""
    argv = ["-m", "psruntime", "dashboard", "--coordinator", coordinator, "--port", "0", *flags]
    process = commands.start(sys.executable, *argv)
    assert process.stdout
    return process, process.stdout.readline().removeprefix("dashboard: ").strip()


class Browser:
    """Keeps a page open, and looks at what the server has on it: by another connection, for one that pulls again
    would write to the page.
    """

    def __init__(self, url: str) -> None:
        self._url, _, query = url.partition("?")
        self._token = dict(parse_qsl(query))  # if the address has one
        self._session = pull_session(url=self._url, arguments=self._token)

    def text_of(self, name: str) -> str:
        return str(self._model(name).text)

    def shown_s(self) -> float:
        """When the coordinator said what is shown."""
        return float(self._model("head").tags[0])

    def close(self) -> None:
        self._session.close()

    def _model(self, name: str) -> Any:
        look = pull_session(session_id=self._session.id, url=self._url, arguments=self._token)
        try:
            return look.document.get_model_by_name(name)
        finally:
            look.close()


@pytest.fixture
def browse() -> Iterator[Callable[[str], Browser]]:
    with ExitStack() as stack:
        yield lambda url: stack.enter_context(closing(Browser(url)))


def ended(process: subprocess.Popen[str], signum: int) -> tuple[int, str]:
    """(code, what it said on stderr)."""
    process.send_signal(signum)
    _, err = process.communicate(timeout=30)
    return process.returncode, err


Browse = Callable[[str], Browser]


@pytest.mark.long
def test_browsers_see_what_the_coordinator_says(stage: Stage, commands: Commands, browse: Browse) -> None:  # noqa: F811
    server = stage.coordinator(PAIR, fresh_s=0.2)
    client = stage.client(server)
    for index in range(2):
        beat = WorkerBeat(stats=WorkerStats(waiting=f"made up by worker {index}"))
        stage.membership(client, PAIR, Role.WORKER, index, lambda _, beat=beat: beat).start(10)
    process, url = started(commands, f"127.0.0.1:{server.port}")
    first, second = browse(url), browse(url)
    poll_until(lambda: "waiting for ps 0 of 1" in first.text_of("head"), 20, "the phase on the page, with its reason")
    poll_until(lambda: "made up by worker 1" in first.text_of("waiting"), 20, "the reason of a worker")
    then_s = second.shown_s()
    poll_until(lambda: second.shown_s() > then_s, 20, "the next look, in the other browser too")
    server.stop(0.0)
    poll_until(lambda: "not reachable since" in first.text_of("head"), 30, "that the coordinator is gone")
    stage.coordinator(PAIR, f"127.0.0.1:{server.port}")
    poll_until(lambda: "not reachable" not in first.text_of("head"), 30, "that it is back")
    code, err = ended(process, signal.SIGTERM)
    assert code == 0
    gone, back = "coordinator .* asked again every second\n", "coordinator .* answers\n"
    assert re.fullmatch(f"(psruntime dashboard: {gone}psruntime dashboard: {back})+", err), err
    assert not commands.running()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", int(url.rstrip("/").rpartition(":")[2])))


def test_it_waits_for_a_job_and_ends_by_ctrl_c(stage: Stage, commands: Commands, browse: Browse) -> None:  # noqa: F811
    process, url = started(commands, stage.refusing())
    browser = browse(f"{url}events")
    poll_until(lambda: "not reachable since" in browser.text_of("head"), 20, "that there is no coordinator")
    code, err = ended(process, signal.SIGINT)
    assert code == 130
    assert err.count("\n") == 1 and "it is asked again every second" in err


@pytest.mark.long
def test_of_a_secured_job_it_needs_the_token(
    stage: Stage,  # noqa: F811
    commands: Commands,
    browse: Browse,
    tmp_path: Path,
) -> None:
    server = stage.coordinator(PAIR, security=Security(tokens=(TOKEN,)))
    (tmp_path / "token").write_text(TOKEN + "\n")
    (tmp_path / "token").chmod(0o600)
    address = f"127.0.0.1:{server.port}"
    without, plain_url = started(commands, address)
    with_token, url = started(commands, address, "--token-file", str(tmp_path / "token"))
    plain, secured = browse(plain_url), browse(url)
    poll_until(lambda: "FORMING" in secured.text_of("head"), 20, "the phase")
    poll_until(lambda: "has no token" in plain.text_of("head"), 20, "why there is none")
    assert "?" not in plain_url and re.fullmatch(r"http://127.0.0.1:\d+/\?token=[\w-]{43}", url)
    with pytest.raises(OSError, match="403"):
        browse(url.partition("?")[0])
    assert ended(without, signal.SIGTERM)[0] == ended(with_token, signal.SIGTERM)[0] == 0


@pytest.mark.long
def test_beyond_loopback_browsers_need_a_token(stage: Stage, commands: Commands, browse: Browse) -> None:  # noqa: F811
    coordinator = stage.refusing()
    process, url = started(commands, coordinator, "--host", "0.0.0.0")
    assert re.fullmatch(r"http://localhost:\d+/\?token=[\w-]{43}", url)
    browse(url)
    code, err = ended(process, signal.SIGTERM)
    port = url.split(":")[2].partition("/")[0]
    assert code == 0 and f"psruntime dashboard: 0.0.0.0:{port} is open to other machines: " in err
    assert url.partition("=")[2] not in err
    commands.environment["PSRUNTIME_DASHBOARD_TOKEN"] = TOKEN
    process, url = started(commands, coordinator)
    assert url.endswith(f"/?token={TOKEN}")
    browse(url)
    assert ended(process, signal.SIGTERM)[0] == 0


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert dashboard.main(["--port", str(port)]) == 2
    assert capsys.readouterr().err == (
        f"psruntime dashboard: address 127.0.0.1:{port} is in use; choose another port with --port\n"
    )
    assert dashboard.main(["--host", "192.0.2.1"]) == 2
    assert capsys.readouterr().err.startswith("psruntime dashboard: address 192.0.2.1:8787 cannot be listened at: ")
    assert dashboard.main(["--port", "70000"]) == 2
    assert capsys.readouterr().err == "psruntime dashboard: port must be from 0 to 65535, got 70000\n"
    assert dashboard.main(["--coordinator", "here"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert dashboard.main(["--port", "0", "--allow-websocket-origin", "https://here"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setenv("PSRUNTIME_DASHBOARD_TOKEN", "fifteen-letters")
    assert dashboard.main([]) == 2
    err = capsys.readouterr().err
    assert err.startswith("psruntime dashboard: PSRUNTIME_DASHBOARD_TOKEN is no token of 16 to 512 visible ASCII")
    assert err.count("\n") == 1 and "fifteen-letters" not in err
    monkeypatch.setitem(sys.modules, "bokeh.plotting", None)
    assert dashboard.main([]) == 2
    assert (
        capsys.readouterr().err
        == "psruntime dashboard: dashboard draws with bokeh: pip install 'psruntime[dashboard]'\n"
    )
