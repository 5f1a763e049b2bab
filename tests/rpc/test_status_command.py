"""psruntime status beside a real coordinator, without TensorFlow: one line for programs, tables that follow the job."""

from __future__ import annotations

import io
import itertools
import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from psruntime.commands import status
from psruntime.config import JobConfig
from psruntime.core.members.job_status import Departure, JobStatus
from psruntime.core.members.membership import Role
from psruntime.core.members.messages import LeaveKind, WorkerBeat, WorkerStats
from psruntime.core.members.view import Phase
from psruntime.errors import PsRuntimeError, UnreachableError
from tests.observe.test_render import JOB, STATUS
from tests.rpc.conftest import JOB_ID, PAIR, Stage
from tests.support.cluster import ROOT

# Also where what runs in the background ignores it; not by preexec_fn, which may hang beside the threads of gRPC.
HEEDS_CTRL_C = ["env", "--default-signal=INT"]
PROG = [sys.executable, "-m", "psruntime", "status", "--coordinator"]


def test_json_is_one_line(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    server = stage.coordinator(PAIR)
    assert status.main(["--json", "--coordinator", f"127.0.0.1:{server.port}"]) == 0
    out, err = capsys.readouterr()
    assert (out.count("\n"), out[-1], err) == (1, "\n", "")
    assert json.loads(out)["job"]["job_id"] == JOB_ID


def test_what_json_says_of_a_member_is_a_second_old_at_most(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """Its heartbeats would wait for minutes; the question lets it say something new."""
    server = stage.coordinator(PAIR, fresh_s=0.2)
    beats: list[int] = []

    def beat(_: int) -> WorkerBeat:
        beats.append(1)
        return WorkerBeat(stats=WorkerStats(pushes=len(beats)))

    stage.membership(stage.client(server), PAIR, Role.WORKER, 0, beat).start(10)
    time.sleep(1.5)  # it is silent for longer than that
    said = len(beats)
    assert status.main(["--json", "--coordinator", f"127.0.0.1:{server.port}"]) == 0
    (worker,) = json.loads(capsys.readouterr().out)["workers"]
    assert worker["silent_s"] <= 1.0
    assert worker["worker_stats"]["pushes"] > said


@pytest.mark.long
def test_watch_shows_tables_and_what_happened_while_the_coordinator_comes_and_goes(stage: Stage) -> None:
    server = stage.coordinator(PAIR)
    client = stage.client(server)
    watching = subprocess.Popen(
        [*HEEDS_CTRL_C, *PROG, f"127.0.0.1:{server.port}", "--watch"], cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={"PYTHONPATH": str(ROOT), "COLUMNS": "200"},
    )  # fmt: skip
    assert watching.stdout
    seen = ""
    while "no ps has joined yet" not in seen:
        seen += _line(watching)
    worker = stage.membership(client, PAIR, Role.WORKER, 0)
    worker.start(10)
    while not re.search(r"joined +worker 0", seen):
        seen += _line(watching)
    worker.leave(LeaveKind.ERROR, "made up")
    while not re.search(r"left \(error\) +worker 0 +made up", seen):
        seen += _line(watching)
    server.stop(0.0)
    while not re.search(r"not reachable since \d\d:\d\d:\d\d: coordinator ", seen):
        seen += _line(watching)
    stage.coordinator(PAIR, f"127.0.0.1:{server.port}")
    while not re.search(r"answers again +coordinator|coordinator +answers again", seen):
        seen += _line(watching)
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=60)
    assert (watching.returncode, err) == (130, "")


GONE = UnreachableError("coordinator a:1: down")


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("show", [status._follow, status._watch])
def test_it_goes_on_while_the_coordinator_is_away(monkeypatch: pytest.MonkeyPatch, show, terminal: bool) -> None:
    out = _shown(monkeypatch, terminal)
    told = Told(STATUS, GONE, GONE, STATUS, replace(STATUS, phase=Phase.DONE, reason="all steps are taken"))
    assert show(told) == 0
    assert not told.left
    assert "all steps are taken" in out.getvalue().splitlines()[-1] or show is status._watch
    if not (terminal and show is status._follow):  # which draws a line twelve times a second
        assert "not reachable since" in out.getvalue() and "all steps are taken" in out.getvalue()


def test_watch_fits_the_terminal_and_shows_all_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [replace(STATUS.members[1], index=index, chief=False) for index in range(20)]
    crowd = replace(STATUS, members=(STATUS.members[0], *workers))
    out = _shown(monkeypatch, terminal=True, height=20)
    done = replace(crowd, phase=Phase.DONE, departures=(Departure(Role.WORKER, 7, "c", None, "silent for 9 s", 1.0),))
    assert status._watch(Told(crowd, done)) == 0
    screen, _, rest = out.getvalue().rpartition("\x1b[?1049l")
    assert re.search(r"lost +worker 7", screen) and re.search(r"and \d+ more", screen)
    assert "worker 19" in rest and not re.search(r"and \d+ more", rest)


@pytest.mark.parametrize("show", [status._follow, status._watch])
def test_it_ends_when_the_coordinator_leaves_at_the_end_of_the_job(monkeypatch: pytest.MonkeyPatch, show) -> None:
    _shown(monkeypatch, terminal=False)
    told = Told(STATUS, replace(STATUS, phase=Phase.DRAINING), GONE)
    assert show(told) == 0
    assert not told.left


@pytest.mark.parametrize("show", [status._follow, status._watch])
def test_it_waits_for_the_coordinator_no_longer_than_the_job_does(monkeypatch: pytest.MonkeyPatch, show) -> None:
    out = _shown(monkeypatch, terminal=False)
    times = itertools.count(1000.0, JOB.ps_timeout_s / 3)
    monkeypatch.setattr(status, "time", SimpleNamespace(time=lambda: next(times), sleep=time.sleep))
    told = Told(STATUS, *[GONE] * 20)
    with pytest.raises(UnreachableError, match="coordinator a:1: down"):
        show(told)
    assert "not reachable since" in out.getvalue() and 10 < len(told.left) < 18


def test_watch_ends_by_ctrl_c(stage: Stage) -> None:
    server = stage.coordinator(PAIR)
    watching = subprocess.Popen(
        [*HEEDS_CTRL_C, *PROG, f"127.0.0.1:{server.port}", "--watch"], cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "FORMING" in _line(watching)
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=60)
    assert (watching.returncode, err) == (130, "")


@pytest.mark.parametrize("flag", ["--watch", "--follow"])
def test_without_a_coordinator_it_says_so(stage: Stage, capsys: pytest.CaptureFixture[str], flag: str) -> None:
    assert status.main([flag, "--coordinator", stage.refusing()]) == 1
    assert "is the job running" in capsys.readouterr().err


class Told:
    """A coordinator that answers with each of these in turn, or fails so."""

    def __init__(self, *answers: JobStatus | PsRuntimeError) -> None:
        self.left = list(answers)

    def get_status(self, watches: bool) -> tuple[JobStatus, JobConfig]:
        assert watches
        answer = self.left.pop(0)
        if isinstance(answer, PsRuntimeError):
            raise answer
        return answer, JOB


def _shown(monkeypatch: pytest.MonkeyPatch, terminal: bool, **size: int) -> io.StringIO:
    """What status prints from now on, without pauses between two looks."""
    out = io.StringIO()
    made = {"width": 160, "_environ": {"TERM": "xterm"}, **size}  # whatever terminal the tests are run from
    monkeypatch.setattr(status, "Console", lambda **_: Console(file=out, force_terminal=terminal, **made))
    monkeypatch.setattr(status, "text_console", lambda: Console(file=out, force_terminal=terminal, **made))
    monkeypatch.setattr(status, "FOLLOW_S", 0.0)
    return out


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("show", [status._follow, status._watch])
def test_brackets_in_a_reason_are_no_markup(monkeypatch: pytest.MonkeyPatch, show, terminal: bool) -> None:
    out = _shown(monkeypatch, terminal)
    reason = "lost [/job:ps/replica:0/task:0] and [bold]"
    told = Told(replace(STATUS, phase=Phase.FORMING, reason=reason), replace(STATUS, phase=Phase.FAILED, reason=reason))
    assert show(told) == 0
    assert reason in out.getvalue()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout and process.stderr
    line = process.stdout.readline()
    assert line, f"it has ended: {process.stderr.read()}"
    return line
