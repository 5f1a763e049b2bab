"""The record of a worker's updates: its files, what is on file when, and how it is read."""

from __future__ import annotations

import json
import math
import sys
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from psruntime.config import JobConfig
from psruntime.core.accounting.accounts import SentUpdate, UpdateOutcome, contribution
from psruntime.errors import UsageError
from psruntime.observe import records as module
from psruntime.observe.records import Record, Recorder, file_of, files_of, line_of, read_records, standing
from tests.support import docs
from tests.support.polling import poll_until

JOB = JobConfig(mode="bounded", bound=3)
APPLIED = UpdateOutcome("applied", 2, 0, 4, 0.25)


def ignore(event: str, **facts: object) -> None:
    """A log that nobody reads."""


def sent(push: int, loss: float = 0.5, outcome: UpdateOutcome = APPLIED) -> SentUpdate:
    return SentUpdate(push, "1-abcdef", 10 + push, outcome, loss, 64, 0.125)


def record(time: float, global_step: int, view: str = "1-a", worker: int = 0, outcome: str = "applied") -> Record:
    return Record(worker, 1, view, global_step, outcome, 1, 0, 0, 1.0, 0.5, 64, 0.0, time, time, "async")


def write(path: Path | str, worker: int, *updates: SentUpdate) -> None:
    recorder = Recorder(str(path), worker, JOB, ignore)
    recorder.begin()
    for update in updates:
        recorder.add(update)
    recorder.close()


@pytest.mark.parametrize(
    ("path", "file"),
    [
        ("runs/x.jsonl", "runs/x-7.jsonl"),
        ("runs/x.parquet", "runs/x-7.parquet"),
        ("x", "x-7"),
        ("runs/{worker}/x.jsonl", "runs/7/x.jsonl"),
        ("of-{worker}-of-8.jsonl", "of-7-of-8.jsonl"),
        ("runs/", "runs/worker-7.jsonl"),
    ],
)
def test_each_worker_has_a_file_of_its_own(path: str, file: str) -> None:
    assert file_of(path, 7) == file


def test_a_folder_that_is_there_needs_no_slash(tmp_path: Path) -> None:
    assert file_of(str(tmp_path), 2) == str(tmp_path / "worker-2.jsonl")


@pytest.mark.parametrize("form", ["x.jsonl", "x.parquet", "{worker}/x[1].jsonl", ""])
def test_what_is_read_is_what_was_written_by_all_workers(form: str, tmp_path: Path) -> None:
    path = f"{tmp_path}/{form}"
    for worker in (0, 1, 11):
        write(path, worker, sent(1, loss=math.nan), sent(2))
    (tmp_path / "x-0-1.jsonl").write_text("{}\n")  # another record's
    assert len(files_of(path)) == 3
    found = read_records(path)
    assert [r.worker for r in found] == [0, 0, 1, 1, 11, 11]
    first, second = read_records(file_of(path, 11))
    assert (first.loss, second.loss) == (None, 0.5)
    assert second == Record(
        11, 2, "1-abcdef", 12, "applied", 2, 0, 4, 0.25, 0.5, 64, 0.125, second.time, second.train_s, "bounded", 3
    )
    assert second.time > 1.7e9 and 0 <= second.train_s < 60


def test_a_record_is_on_file_while_the_worker_runs(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path / "new" / "x.jsonl"), 0, JOB, ignore)
    recorder.add(sent(1))
    poll_until(lambda: len(read_records(tmp_path / "new" / "x.jsonl")) == 1, 10, "the record on file")
    recorder.add(sent(2))
    recorder.close()
    assert [r.push for r in read_records(tmp_path / "new" / "x.jsonl")] == [1, 2]


def test_no_update_is_lost_when_many_are_added_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 120.0)  # the limit is for a disk that hangs, not for a busy machine
    write(tmp_path / "x.jsonl", 0, *(sent(push) for push in range(5000)))
    assert sorted(r.push for r in read_records(tmp_path / "x.jsonl")) == list(range(5000))


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_the_file_of_a_killed_worker_is_read_and_gone_on_with(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{ending}"
    lines = tmp_path / ("x-0.parquet.jsonl" if ending == "parquet" else "x-0.jsonl")
    write(tmp_path / "other.jsonl", 0, sent(1), sent(2))
    whole = (tmp_path / "other-0.jsonl").read_text()
    lines.write_text(whole[:-30])
    assert [r.push for r in read_records(path)] == [1]
    write(path, 0, sent(3))
    assert [r.push for r in read_records(path)] == [1, 3]
    write(path, 0, sent(4))
    assert [r.push for r in read_records(path)] == [1, 3, 4]
    assert lines.exists() == (ending == "jsonl")


def test_a_full_disk_is_told_once_and_when_it_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[str, dict[str, Any]]] = []
    failing, tried = threading.Event(), threading.Semaphore(0)
    failing.set()

    class Disk(module.LineFile):
        def add(self, lines: str) -> None:
            if failing.is_set():
                tried.release()
                raise OSError(28, "No space left on device")
            super().add(lines)

    monkeypatch.setattr(module, "LineFile", Disk)
    monkeypatch.setattr(module, "WRITE_S", 0.01)
    recorder = Recorder(str(tmp_path / "x.jsonl"), 0, JOB, lambda event, **facts: logged.append((event, facts)))
    for push in (1, 2):
        recorder.add(sent(push))
        assert tried.acquire(timeout=10)
    failing.clear()
    recorder.add(sent(3))
    recorder.close()
    path = str(tmp_path / "x-0.jsonl")
    assert logged == [
        ("record_failed", {"path": path, "reason": "No space left on device"}),
        ("record_resumed", {"path": path, "records_lost": 2}),
    ]
    assert [r.push for r in read_records(path)] == [3]


def test_parquet_without_pyarrow_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"x-0.parquet needs pyarrow: pip install 'psruntime\[parquet\]', or let"):
        Recorder(str(tmp_path / "x.parquet"), 0, JOB, ignore)
    assert not list(tmp_path.iterdir())


def test_a_parquet_file_that_is_damaged_keeps_no_worker_from_its_end(tmp_path: Path) -> None:
    logged: list[tuple[str, dict[str, object]]] = []
    (tmp_path / "x-0.parquet").write_bytes(b"no Parquet at all")
    recorder = Recorder(str(tmp_path / "x.parquet"), 0, JOB, lambda event, **facts: logged.append((event, facts)))
    recorder.add(sent(1))
    recorder.close()
    assert [event for event, _ in logged] == ["record_failed"]
    assert [r.push for r in read_records(tmp_path / "x-0.parquet.jsonl")] == [1]


@pytest.mark.parametrize("path", ["file/x.jsonl"])
def test_a_path_that_cannot_be_written_is_the_users_mistake(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"record .* cannot be written: .*; give another --record"):
        Recorder(str(tmp_path / path), 0, JOB, ignore)


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no record .*none.jsonl; give what was given to --record"):
        read_records(tmp_path / "none.jsonl")
    (tmp_path / "rounds.jsonl").write_text('{"record": "round"}\n')
    with pytest.raises(UsageError, match="is no record: it has no applied"):
        read_records(tmp_path / "rounds.jsonl")


def test_a_field_of_a_later_release_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({**json.loads(line_of(record(1, 1))), "colour": "red"}) + "\n")
    assert read_records(tmp_path / "x.jsonl") == [record(1, 1)]


def test_what_a_rollback_undid_does_not_stand() -> None:
    """Step 5 and 6 of the first view are made again in the second; a third goes on from there."""
    first = [record(step, step, "1-a", worker=step % 2) for step in range(1, 7)]
    refused = record(6.5, 6, "1-a", outcome="stale")
    second = [record(10 + step, step, "1-b", worker=step % 2) for step in (5, 6, 7)]
    third = [record(20 + step, step, "2-b") for step in (8, 9)]
    stands = standing([*second, *third, *first, refused])
    assert stands == [*first[:4], *second, *third]


def test_a_round_that_was_repeated_stands_once() -> None:
    rounds = [
        record(step + worker / 10, step, worker=worker, outcome="contributed") for step in (1, 2) for worker in (0, 1)
    ]
    again = record(3, 2, outcome="contributed")
    assert standing([*rounds, again]) == [rounds[0], rounds[1], rounds[3], again]


def test_a_contribution_is_recorded_with_its_attempt(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", 0, sent(5, outcome=contribution(2, counts=True)))
    (found,) = read_records(tmp_path / "x.jsonl")
    assert (found.push, found.outcome, found.staleness, found.weight) == (5, "contributed", 0, 1.0)


def test_the_table_of_fields_has_them_all() -> None:
    rows = docs.table("docs/observing.md", "record")
    named = [word.strip(" `") for row in rows for word in row[0].split(",")]
    assert named == [field.name for field in fields(Record)]
