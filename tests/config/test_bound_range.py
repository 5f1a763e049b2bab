"""A range of bounds, --bound auto:LOW-HIGH, from its text to the job and over the wire."""

from __future__ import annotations

from pathlib import Path

import pytest

from psruntime.config import JobConfig
from psruntime.config.job import as_started_so, contradictions
from psruntime.config.values import BoundRange, bound_of
from psruntime.errors import UsageError
from psruntime.process import flags
from psruntime.rpc.wire.messages import job_from_wire, job_to_wire


def parsed(*words: str) -> JobConfig:
    parser = flags.Parser("test", "")
    parser.add_settings(JobConfig)
    flags.add_job_file_flag(parser)
    return JobConfig(**flags.job_settings(parser.parse_args(words)))


def test_a_range_begins_with_its_least_bound() -> None:
    job = parsed("--mode=bounded", "--bound=auto:1-8")
    assert (job.bound, job.max_bound, str(job.bound_range)) == (1, 8, "auto:1-8")
    assert job_from_wire(job_to_wire(job)) == job
    assert parsed("--mode=bounded", "--bound=1").bound_range is None
    assert parsed("--mode=bounded", "--bound=1").job_id != job.job_id


def test_a_job_file_says_it_as_a_flag_does(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('mode = "bounded"\nbound = "auto:0-3"\n')
    assert parsed(f"--job={file}") == parsed("--mode=bounded", "--bound=auto:0-3")
    file.write_text('mode = "bounded"\nbound = "3"\n')
    assert parsed(f"--job={file}").bound == 3
    file.write_text('mode = "bounded"\nbound = "auto:3"\n')
    with pytest.raises(UsageError, match=r"bound must be a whole number or auto:LOW-HIGH, as auto:1-8, got 'auto:3'"):
        parsed(f"--job={file}")


@pytest.mark.parametrize("word", ["", "x", "-1", "1.5", "auto", "auto:", "auto:1", "auto:-1-8", "auto:1-", "auto:8-1"])
def test_what_is_no_bound_is_one_line(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed("--mode=bounded", f"--bound={word}")
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1
    assert "bound must be a whole number or auto:LOW-HIGH" in said or "needs a LOW that is below HIGH" in said


def test_a_range_is_not_for_a_schedule_and_ends_where_an_operator_sets_the_mode() -> None:
    with pytest.raises(UsageError, match="schedule says the mode"):
        JobConfig(bound="auto:1-8", schedule="async:5, sync")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="schedule says the bounds; leave out bound auto:1-8"):
        JobConfig(mode="bounded", bound="auto:1-8", schedule="bounded 1:5, sync")  # type: ignore[arg-type]
    job = parsed("--mode=bounded", "--bound=auto:1-8")
    assert as_started_so(job, "bounded", 4) == parsed("--mode=bounded", "--bound=4", f"--job-id={job.job_id}")


def test_another_range_contradicts_the_job() -> None:
    job = parsed("--mode=bounded", "--bound=auto:1-8")
    assert contradictions({"bound": "auto:1-8"}, job) == []
    assert contradictions({"bound": "auto:1-4"}, job) == ["--bound auto:1-4 here, auto:1-8 in the job"]
    assert contradictions({"bound": 1}, job) == ["--bound 1 here, auto:1-8 in the job"]


def test_the_nearest_bound() -> None:
    assert [BoundRange(2, 5).nearest(bound) for bound in (0, 2, 3, 9)] == [2, 2, 3, 5]
    assert [bound_of(word) for word in ("0", "12", "auto:1-8")] == [0, 12, "auto:1-8"]
