"""The plots of the benchmarks: a result gives a picture, anything else one line."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from benchmarks import panels, plots
from benchmarks.panels import OURS

MODEL = "async: 160 dense variables of 1003520 bytes together, Adam"


def a_result(**changes: Any) -> dict[str, Any]:
    spread = {"ours": [90.0, 110.0], "peer": [45.0, 52.0], "ratio": [1.9, 2.2]}
    told = {"workload": f"{MODEL}, 1 ps", "unit": "steps/s", "ours": 100.0, "peer": 50.0, "ratio": 2.0}
    return {**told, "spread": spread, "runs": 3, **changes}


def without(result: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in names}


ANSWERS = {"report": {"calls": 10, "p50": 1.0, "p99": 40.0, "max": 90.0}}
RESULTS = {
    "one": a_result(),
    "each": {"workload": "async training", "each": [a_result(), a_result(workload=f"{MODEL}, 2 ps", ours=4000.0)]},
    "units": {"workload": "both", "each": [a_result(), a_result(unit="ms")]},
    "no_peer": without(a_result(), "peer", "ratio"),
    "due": a_result(due=3.0),
    "scaling": {"workload": "scaling", "each": [without(a_result(workers=n), "workload") for n in (1, 2, 4)]},
    "coordinator": {"workload": "coordinator", "unit": "ms", "answers": ANSWERS},
    "quick": a_result(runs=1, quick=True),
}
WRONG = {
    "no JSON": ('{"workload":', "is not JSON"),
    "bytes": (b"\xff\xfe\x00", "is not JSON"),
    "a list": ("[1, 2]", "is not one JSON object"),
    "nothing": ("{}", "'workload' is missing"),
    "no unit": (json.dumps(a_result(unit=None)), "'unit' is missing"),
    "a text": (json.dumps(a_result(ours="fast")), "'ours' is no number"),
    "nan": (json.dumps(a_result(ours=float("nan"))), "'ours' is no number"),
    "half a spread": (json.dumps(a_result(spread={"ours": [1.0]})), "no lowest and highest of 'ours'"),
    "a spread that is none": (json.dumps(a_result(spread=[1, 2])), "under 'spread'"),
    "none of each": (json.dumps({"workload": "x", "each": []}), "under 'each'"),
    "no answers": (json.dumps({"workload": "x", "answers": {}}), "under 'answers'"),
}


def written(folder: Path, name: str, content: Any) -> Path:
    path = folder / f"{name}.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def size_of(png: Path) -> tuple[int, int]:
    content = png.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    return width, height


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_gives_a_picture(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, name, json.dumps(RESULTS[name]))
    assert plots.main([str(path), "--out", str(tmp_path / "made" / "here")]) == 0
    png = tmp_path / "made" / "here" / f"{name}.png"
    width, height = size_of(png)
    assert width == 1020 and 150 <= height <= 2000
    assert capsys.readouterr().out == f"{png}\n"


def test_the_same_result_gives_the_same_bytes(tmp_path: Path) -> None:
    path = written(tmp_path, "one", json.dumps(RESULTS["each"]))
    for folder in ("a", "b"):
        plots.main([str(path), "--out", str(tmp_path / folder)])
    assert (tmp_path / "a/one.png").read_bytes() == (tmp_path / "b/one.png").read_bytes()


@pytest.mark.parametrize("case", WRONG)
def test_anything_else_is_one_line(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, complaint = WRONG[case]
    path = written(tmp_path, "wrong", content)
    good = written(tmp_path, "good", json.dumps(a_result()))
    assert plots.main([str(good), str(path), "--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"{path}: ") and complaint in told and told.count("\n") == 1
    assert not (tmp_path / "good.png").exists(), "all files are looked at before anything is drawn"


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plots.main([str(tmp_path / "none.json"), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{tmp_path / 'none.json'}: cannot be read: No such file or directory\n"


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "one", json.dumps(a_result()))
    assert plots.main([str(path), "--out", str(path / "below")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_what_was_skipped_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "links", json.dumps({"workload": "links", "skipped": "needs root"}))
    assert plots.main([str(path), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err == f"{path}: skipped: needs root\n"
    assert not list(tmp_path.glob("*.png"))


def test_rows_are_told_apart_by_what_differs() -> None:
    figure = panels.figure_of(RESULTS["each"])
    (panel,) = figure.panels
    assert figure.title == "async training: async: 160 dense variables of 1.0 MB together, Adam"
    assert [row.label for row in panel.rows] == ["1 ps", "2 ps"]
    assert panel.is_log, "from 50 to 4000 is more than a decade"
    assert panel.rows[0].note == "2x" and panel.rows[0].values[OURS].high == 110.0


def test_each_unit_has_a_panel() -> None:
    assert [panel.unit for panel in panels.figure_of(RESULTS["units"]).panels] == ["steps/s", "ms"]


def test_a_quick_run_says_so() -> None:
    assert "quick run" in panels.figure_of(RESULTS["quick"]).footer
    assert "quick run" not in panels.figure_of(RESULTS["one"]).footer
