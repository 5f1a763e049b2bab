"""How the launcher reads the logs of its processes, in either form."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from psruntime.launch.children import announced
from psruntime.launch.watch import ENDED_EARLY, NOTHING_TO_TRAIN, WHY, Progress, _readable, held_out_of
from psruntime.observe.log import JSON_LOG, TEXT_LOG, Exact, Log

REASON = 'operation "loss" failed; already at global step 20 of 20 (--train-steps): nothing to train'


def written(form: str, event: str, reason: str = REASON) -> str:
    """The first line of an entry with a traceback."""
    reading, writing = os.pipe()
    Log("worker", 1, form, writing)(event, reason=reason, traceback="Traceback\n  here")
    os.close(writing)
    with os.fdopen(reading) as log:
        return log.readline().rstrip("\n")


@pytest.mark.parametrize("form", [TEXT_LOG, JSON_LOG])
@pytest.mark.parametrize(("event", "tells"), [("error", True), ("crash", True), ("progress", False)])
def test_the_reason_of_an_end_is_found(form: str, event: str, tells: bool) -> None:
    assert bool(WHY.search(written(form, event))) == tells


def test_a_reason_in_json_is_shown_as_text_without_its_traceback() -> None:
    time, *rest = _readable(written(JSON_LOG, "error")).split(" ", 3)
    assert rest == ["worker", "1", f"error {REASON}"] and time.endswith("Z")


@pytest.mark.parametrize("line", ["READY ps 0 127.0.0.1:1", "2 error", "[]", '{"event": "error"}', ""])
def test_any_other_line_is_shown_as_it_is(line: str) -> None:
    assert _readable(line) == line


@pytest.mark.parametrize("form", [TEXT_LOG, JSON_LOG])
def test_the_metrics_of_the_end_have_all_their_digits(form: str, tmp_path: Path) -> None:
    metrics = {"loss": 0.1 + 0.2, "recall at 5/0": 1e-17, "a=b": float("inf"), "none": float("nan"), "auc": 1.0}
    with (tmp_path / "worker-1.log").open("w") as file:
        log = Log("worker", 1, form, file.fileno())
        for values in ({"loss": 9.0}, metrics):
            log("evaluation", global_step=1001, **{name: Exact(value) for name, value in values.items()})
        log("exit", code=0)
    found = held_out_of("READY worker 1\n" + (tmp_path / "worker-1.log").read_text())
    assert repr(found) == repr(metrics)
    assert held_out_of("nothing") == {}


@pytest.mark.parametrize("form", [TEXT_LOG, JSON_LOG])
def test_that_nothing_is_left_to_train_is_found(form: str) -> None:
    found = NOTHING_TO_TRAIN.search(written(form, "phase"))
    assert found and found[0] == REASON.partition("; ")[2]
    epochs = "epoch 3 of 3 (--epochs) was done already, at global step 9: nothing to train; raise --epochs to go on"
    assert (found := NOTHING_TO_TRAIN.search(written(form, "phase", epochs))) and found[0] == epochs


@pytest.mark.parametrize("form", [TEXT_LOG, JSON_LOG])
def test_that_a_process_is_ready_is_found(form: str) -> None:
    log = Log("ps", 0, form)
    lines = ["READY coordinator", "{", "[1]", log.line("ready", "READY coordinator 0 a:1", address="a:1")]
    assert announced("coordinator 0", lines) == "a:1" and announced("ps 0", lines) == ""
    assert (form == JSON_LOG) == (lines[-1][0] == "{")


@pytest.mark.parametrize("form", [TEXT_LOG, JSON_LOG])
def test_why_a_job_has_ended_early_is_found(form: str) -> None:
    why = "mae got no better in 2 checkpoints: best was 0.5000 at global step 40; ended early, at global step 90"
    assert (found := ENDED_EARLY.search(written(form, "phase", why))) and found[0] == why


def test_the_lines_of_the_progress_are_shown_also_the_last_ones() -> None:
    shown: list[str] = []
    first: Any = SimpleNamespace(backoff=SimpleNamespace(restarts=0), coordinator="")
    progress = Progress(first, ("platform",), shown.append)  # a module that prints a line and ends
    progress._process.wait(60)
    progress.update()
    progress.end()
    assert shown == [platform.platform()]
