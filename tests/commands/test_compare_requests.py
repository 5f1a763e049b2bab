"""What `psruntime compare` is asked for, and one line for each mistake."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from psruntime.commands import compare
from psruntime.commands.compare import grid_of, modes_of, slow_of, with_params
from psruntime.errors import UsageError
from psruntime.study.comparison import Training


def test_modes_with_bounds_and_further_flags() -> None:
    requests = modes_of(
        "async; bounded  0;bounded 4; bounded auto:1-8; sync ;async --staleness-lr inverse --pipeline 2;"
    )
    asked = [(request.name, request.settings, request.more) for request in requests]
    assert asked == [
        ("async", {"mode": "async"}, ()),
        ("bounded 0", {"mode": "bounded", "bound": 0}, ()),
        ("bounded 4", {"mode": "bounded", "bound": 4}, ()),
        ("bounded auto:1-8", {"mode": "bounded", "bound": "auto:1-8"}, ()),
        ("sync", {"mode": "sync"}, ()),
        (
            "async --staleness-lr inverse --pipeline 2",
            {"mode": "async"},
            ("--staleness-lr", "inverse", "--pipeline", "2"),
        ),
    ]


def test_a_schedule_is_one_of_the_modes() -> None:
    (request,) = modes_of("async:500, bounded 4: 200 ,sync --save-steps 100")
    assert request.settings == {"schedule": "async:500, bounded 4:200, sync"}
    assert request.more == ("--save-steps", "100")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (" ; ", "--modes names no mode"),
        ("asyn", "'asyn' is no mode; did you mean async"),
        ("stale", "'stale' is no mode; there are async, bounded N and sync"),
        ("bounded", "bounded needs its bound, as bounded 4, got 'bounded'"),
        ("bounded --pipeline 2", "bounded needs its bound"),
        ("bounded -1", "bounded needs its bound"),
        (
            "bounded auto",
            "--modes 'bounded auto': bound must be a whole number or auto:LOW-HIGH, as auto:1-8, got 'auto'",
        ),
        ("bounded auto:8-1", "bound auto:LOW-HIGH needs a LOW that is below HIGH, got 'auto:8-1'"),
        ("bounded auto:1-8, sync", "bound must be a whole number or auto:LOW-HIGH"),
        ("async, sync", "--modes 'async, sync': schedule: 'async' needs how many global steps it lasts"),
        ("async:5; sync", "--modes 'async:5': schedule: the last stage, 'async', lasts to the end"),
        ("--pipeline 2", "--modes: '' is no mode"),
        ("async 4", "'4' is unexpected in 'async 4'"),
        ("sync; sync", "--modes has 'sync' twice"),
    ],
)
def test_what_is_no_mode(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        modes_of(text)


def test_slow_workers() -> None:
    assert slow_of("", 4) == {}
    assert slow_of("3:5x", 4) == {3: 5.0}
    assert slow_of("0:1.5x, 3:20x", 4) == {0: 1.5, 3: 20.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "--slow must be WORKER:TIMESx, from 1x to 1000x, as 3:5x") for text in ("3", "3:5", "x:5x", "3:0.5x")),
        ("3:1e9x", "--slow must be"),
        ("4:2x", "--slow names worker 4; there are 4, from 0 to 3"),
        ("1:2x,1:3x", "--slow names worker 1 twice"),
    ],
)
def test_what_is_no_slow_worker(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        slow_of(text, 4)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--modes=async;bounds 4"], "psruntime compare: --modes: 'bounds' is no mode; did you mean bounded?"),
        (["--modes=sync --staleness-lr inverse"], "psruntime compare: staleness_lr is for mode async and bounded, "),
        (["--modes=async --bound 3"], "--modes 'async --bound 3': --bound stands there already, without dashes"),
        (["--slow=9:2x"], "psruntime compare: --slow names worker 9; there are 4, from 0 to 3"),
        (["--workers=0"], "psruntime compare: workers must be at least 1, got 0"),
        (["--model=no_such_model"], "no_such_model"),
        (["--train-steps=0"], "psruntime compare: train_steps must be at least 1, got 0"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.count("\n") == 1


def test_a_misspelt_flag_behind_a_mode(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        compare.main(["--modes=async --staleness-l inverse"])
    err = capsys.readouterr().err
    assert "--modes 'async --staleness-l inverse': unrecognized argument --staleness-l; did you mean" in err
    assert err.count("\n") == 1


def test_without_bokeh(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "bokeh", None)
    monkeypatch.setitem(sys.modules, "bokeh.plotting", None)
    assert compare.main([]) == 2
    assert capsys.readouterr().err == "psruntime compare: compare draws with bokeh: pip install 'psruntime[compare]'\n"


def test_a_page_that_cannot_be_written(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("bokeh")
    (tmp_path / "file").write_text("")
    assert compare.main([f"--out={tmp_path}/file/a.html"]) == 2
    assert "cannot be written: " in capsys.readouterr().err


def test_every_mode_has_as_many_batches() -> None:
    arguments = compare._parser().parse_args(["--train-steps=1002", "--workers=4"])
    steps = {
        r.name: compare._settings_of(r, arguments)["train_steps"]
        for r in modes_of("async; bounded 2; sync; async:602,sync")
    }
    assert steps == {"async": 1002, "bounded 2": 1002, "sync": 251, "async:602,sync": 702}
    (own,) = modes_of("sync --train-steps 7")
    assert compare._settings_of(own, arguments)["train_steps"] == 7


def test_a_grid_has_a_job_for_each_combination() -> None:
    grid = grid_of(["lr=0.1,1e-3", "hidden=6", 'by="a,b",c,""'])
    assert len(grid) == 6 and grid[0] == (("lr", 0.1), ("hidden", 6), ("by", "a,b"))
    assert {dict(params)["by"] for params in grid} == {"a,b", "c", ""}
    assert [with_params("async", params, grid) for params in grid][:2] == ["async lr=0.1 by=a,b", "async lr=0.1 by=c"]
    assert grid_of([]) == [()] and with_params("sync", (), [()]) == "sync"
    (one,) = grid_of(["lr=0.1"])
    assert with_params("sync", one, [one]) == "sync"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lr"], "--set must be NAME=VALUE, as lr=0.1, got 'lr'"),
        (["lr=1,2,1"], "--set lr: a value is given twice"),
        (["lr=1", "lr=2"], "--set lr: the name is given twice"),
    ],
)
def test_a_wrong_grid_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main([f"--set={word}" for word in words]) == 2
    assert capsys.readouterr() == ("", f"psruntime compare: {said}\n")


@pytest.mark.parametrize(
    ("code", "names"), [(1, ["async lr=0.1", "async lr=9", "async lr=0.3"]), (130, ["async lr=0.1", "async lr=9"])]
)
def test_a_job_of_a_grid_that_fails_does_not_end_it_and_one_that_is_interrupted_does(
    code: int, names: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("bokeh")
    trained: list[str] = []

    def train(name: str, *_: Any) -> Training | int:
        trained.append(name)
        loss = float(name.partition("lr=")[2])
        return code if loss == 9 else Training(name, 1, 1.0, 1, 0, [], [], {}, {}, {"loss": loss})

    monkeypatch.setattr(compare, "_train", train)
    monkeypatch.setattr(compare, "page_of", lambda *_: "")
    monkeypatch.setattr(compare, "find_model", lambda _: None)
    assert compare.main(["--set=lr=0.1,9,0.3", f"--out={tmp_path}/page.html"]) == code
    assert trained == names
    assert ("best by held-out loss: async lr=0.1\n" in capsys.readouterr().out) == (code == 1)


def test_a_slow_worker_alone_is_told_so(tmp_path: Path) -> None:
    arguments = compare._parser().parse_args(["--workers=2", "--batch-size=8"])
    (request,) = modes_of("sync")
    job, _, _ = compare._job(arguments, compare._settings_of(request, arguments), {1: 5.0}, tmp_path / "0")
    first, second = (spec.arguments for spec in job.others("a:1"))
    assert "--slowdown=5.0" in second and not [word for word in first if "slowdown" in word]
    for words in (first, second):
        assert "--batch-size=8" in words and f"--record={tmp_path}/0/record.jsonl" in words
