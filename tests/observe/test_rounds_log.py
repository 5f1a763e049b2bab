"""The rounds log: a line for every record, on file at once."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from psruntime.errors import UsageError
from psruntime.observe.rounds_log import RoundsLog


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
    told: list[tuple[str, dict[str, object]]] = []
    log = RoundsLog("/dev/full", lambda event, **facts: told.append((event, facts)))
    log.write({"record": "round"})
    log.write({"record": "round"})
    assert told == [("rounds_log_failed", {"path": "/dev/full", "reason": "No space left on device"})]
    log.close()
