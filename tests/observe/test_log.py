"""The log: one line per event, whatever the values are."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
import warnings

import pytest

from psruntime.config.process import JSON_LOG, TEXT_LOG
from psruntime.core.members.view import Phase
from psruntime.observe.log import Log, facts_of, line_text, take_warnings


@pytest.fixture
def written(tmp_path):
    """A log, and a function that reads what it has written."""
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    log = Log("worker", 1, descriptor=descriptor)
    os.close(descriptor)
    return log, lambda: path.read_text(encoding="utf-8").split("\n")[:-1]


def test_a_line_has_time_place_event_and_facts(written):
    log, read = written
    log("member_joined", member="ps 0", incarnation="ab12", after_s=0.25, steps=3, phase=Phase.FORMING)
    (line,) = read()
    time, _, rest = line.partition(" ")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    assert rest == 'worker 1 member_joined member="ps 0" incarnation=ab12 after_s=0.25 steps=3 phase=FORMING'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", '""'),
        ("a=b", '"a=b"'),
        ('say "hi"', r'"say \"hi\""'),
        ("two\nlines", r'"two\nlines"'),
        ("\x1b[31mred\x07", r'"\x1b[31mred\x07"'),
        ("back\\slash", r'"back\\slash"'),
        ("größe", "größe"),
        ("half \udcff", r'"half \udcff"'),
        ("line\u2028sep", r'"line\u2028sep"'),
        (1234567.0, "1.23457e+06"),
        (float("nan"), "nan"),
        (None, "None"),
        (ValueError("no room"), '"no room"'),
    ],
)
def test_a_value_stays_on_its_line(written, value, text):
    log, read = written
    log("event", value=value)
    (line,) = read()
    assert line.split(" ", 4)[4] == f"value={text}"


def crash(log):
    try:
        raise ZeroDivisionError("by zero\n2026-01-01T00:00:00.000Z ps 0 exit code=0\x1b[31m")
    except ZeroDivisionError as error:
        log("crash", **facts_of(error))


def test_a_crash_is_a_line_and_below_it_the_traceback(written):
    log, read = written
    crash(log)
    log("exit", code=75)
    line, *below, last = read()
    assert line.endswith('worker 1 crash reason="ZeroDivisionError: by zero"')
    assert below[0] == "    Traceback (most recent call last):" and "    ZeroDivisionError: by zero" in below
    assert all(line.startswith("    ") and line.isprintable() for line in below)
    assert last.endswith("worker 1 exit code=75")


def test_json_has_the_same_fields(tmp_path):
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    log = Log("ps", 0, "json", descriptor)
    os.close(descriptor)
    log("member_left", member="worker 0", after_s=0.25, steps=3, phase=Phase.FORMING, ok=True, loss=float("nan"))
    log("odd", none=None, text="a \udcff b\n", error=ValueError("no room"))
    crash(log)
    first, odd, crashed = map(json.loads, path.read_text().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {
        "role": "ps", "index": 0, "event": "member_left", "member": "worker 0", "after_s": 0.25, "steps": 3,
        "phase": "FORMING", "ok": True, "loss": "nan",
    }  # fmt: skip
    assert (odd["none"], odd["error"]) == (None, "no room")
    assert crashed["reason"] == "ZeroDivisionError: by zero"
    assert crashed["traceback"].startswith("Traceback (most recent call last):\n")


def test_lines_of_threads_do_not_mix(written):
    log, read = written
    threads = [
        threading.Thread(target=lambda n=n: [log("event", text=str(n) * 50) for _ in range(50)]) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = read()
    assert len(lines) == 200
    assert all(re.search(r" event text=(\d)\1{49}$", line) for line in lines)


def test_a_log_that_nobody_reads_does_no_harm():
    reader, writer = os.pipe()
    os.close(reader)
    Log("ps", 0, descriptor=writer)("event")
    os.close(writer)


@pytest.mark.parametrize("form", [TEXT_LOG, JSON_LOG])
def test_warnings_of_other_code_are_entries_of_a_log_of_json(form, capfd, monkeypatch):
    logger = logging.getLogger("psruntime.other")
    monkeypatch.setattr(logging.getLogger("py.warnings"), "handlers", [])
    take_warnings(Log("worker", 1, form), "psruntime.other")
    try:
        logger.warning("%s is\nold", "x")
        if form == TEXT_LOG:
            assert "python_warning" not in capfd.readouterr().err
            return
        warnings.showwarning("y is old", UserWarning, "model.py", 3)
        first, second = map(json.loads, capfd.readouterr().err.splitlines())
        assert (first["event"], first["logger"], first["reason"]) == ("python_warning", "psruntime.other", "x is\nold")
        assert "y is old" in second["reason"]
    finally:
        logging.captureWarnings(False)
        logger.handlers, logger.propagate = [], True


@pytest.mark.parametrize("form", [TEXT_LOG, JSON_LOG])
def test_a_line_for_the_reader_of_stdout_is_an_entry_in_a_log_of_json(form):
    line = Log("worker", 1, form).line("held_out", "held out: text 0.5", text=0.5, loss=math.nan)
    assert line_text(line) == "held out: text 0.5"
    if form == JSON_LOG:
        entry = json.loads(line)
        assert (entry["event"], entry["role"], entry["index"], entry["loss"]) == ("held_out", "worker", 1, "nan")
    else:
        assert line == "held out: text 0.5"
