"""The rounds log: a line for every record, on file at once."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

import pytest

from psruntime.errors import UsageError
from psruntime.observe.rounds_log import RoundsLog, records_of, rounds_of
from tests.support.bad_files import make_unreadable


def ignore(event: str, **facts: object) -> None:
    """A log that nobody reads."""


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_record_is_on_file_when_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "rounds.jsonl"
    log = RoundsLog(str(path), ignore)
    log.write({"record": "prepared", "view": 1})
    (line,) = lines(path)
    assert datetime.fromisoformat(str(line.pop("time"))).tzinfo is not None
    assert line == {"record": "prepared", "view": 1}
    log.write({"record": "round", "parts": [{"worker": 0}]})
    assert [line["record"] for line in lines(path)] == ["prepared", "round"]
    log.close()


def test_a_log_is_added_to(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    for view in (1, 2):
        log = RoundsLog(str(path), ignore)
        log.write({"view": view})
        log.close()
    assert [line["view"] for line in lines(path)] == [1, 2]


@pytest.mark.parametrize("path", [".", "file/rounds.jsonl"])
def test_a_path_that_cannot_be_written_is_the_users_mistake(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"rounds log .* cannot be written: .*; give another --rounds-log"):
        RoundsLog(str(tmp_path / path), ignore)


def test_a_full_disk_is_told_once_and_the_training_goes_on(tmp_path: Path) -> None:
    logged: list[tuple[str, dict[str, object]]] = []
    log = RoundsLog("/dev/full", lambda event, **facts: logged.append((event, facts)))
    log.write({"record": "round"})
    log.write({"record": "round"})
    assert logged == [("rounds_log_failed", {"path": "/dev/full", "reason": "No space left on device"})]
    log.close()
    assert logged[1:] == [("rounds_log_failed", {"path": "/dev/full", "records_lost": 2})]


def test_a_file_that_cannot_be_opened_yet_is_tried_again(tmp_path: Path) -> None:
    logged: list[str] = []
    path = tmp_path / "rounds.jsonl"
    make_unreadable(path, opens=False)
    log = RoundsLog(str(path), lambda event, **_: logged.append(event))
    log.write(applied(1))
    path.unlink()
    log.write(applied(2))
    assert logged == ["rounds_log_failed", "rounds_log_resumed"]
    log.close()
    assert [record["global_step"] for record in records_of(path)] == [2]


def test_a_record_that_was_cut_off_stands_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a full disk, and by the end of a process."""
    logged: list[str] = []
    path = tmp_path / "rounds.jsonl"
    log = RoundsLog(str(path), lambda event, **_: logged.append(event))
    log.write({"record": "prepared", "global_step": 0})
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, line: write(file, line[:9]))
    log.write(applied(1))
    monkeypatch.undo()
    log.write(applied(2))
    assert logged == ["rounds_log_failed", "rounds_log_resumed"]
    log.close()
    with path.open("a") as file:
        file.write('{"record": "rou')
    log = RoundsLog(str(path), ignore)
    log.write(applied(3))
    log.close()
    assert [record["global_step"] for record in records_of(path)] == [0, 2, 3]


def applied(step: int) -> dict[str, object]:
    return {"record": "round", "applied": True, "global_step": step}


def test_the_rounds_are_those_that_were_not_undone(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    prepared = {"record": "prepared", "global_step": 1}
    refused = {**applied(2), "applied": False}
    records = [applied(1), applied(2), applied(3), prepared, refused, applied(2), {"record": "void"}, applied(3)]
    path.write_text("".join(json.dumps({**record, "number": n}) + "\n" for n, record in enumerate(records)))
    assert [record["number"] for record in rounds_of(path)] == [0, 5, 7]
    with path.open("a") as log:
        for record in ({**prepared, "mode": "async"}, {**prepared, "global_step": 9}, applied(10)):
            log.write(json.dumps({**record, "number": 10}) + "\n")
    assert [record["global_step"] for record in rounds_of(path)] == [1, 10]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no round that was applied; give the file of --rounds-log"),
        ("what\n[1]\n", "has no round that was applied"),
        ('{"step": 1}\n', "is no rounds log: a line has no 'record'"),
    ],
)
def test_a_log_that_cannot_be_used_is_named(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=complaint):
        rounds_of(path)
    with pytest.raises(UsageError, match=r"rounds log .* cannot be read: No such file"):
        rounds_of(tmp_path / "other")
