"""Command lines and job files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from psruntime import flags
from psruntime.config import JobConfig, ProcessConfig, WorkerConfig, job_fields
from psruntime.errors import UsageError


def parse(*argv: str) -> argparse.Namespace:
    parser = flags.make_parser("test", "a test")
    flags.add_process_flags(parser)
    flags.add_worker_flags(parser)
    parser.add_argument("--job", default="")
    flags.add_job_flags(parser, "the job")
    return parser.parse_args(["--index", "0", *argv])


def test_defaults_are_those_of_the_configs() -> None:
    arguments = parse()
    assert flags.process_config(arguments) == ProcessConfig(index=0)
    assert flags.worker_config(arguments) == WorkerConfig()
    assert flags.job_config(arguments) == JobConfig()
    assert flags.job_flags_given(arguments) == {}


def test_every_setting_of_the_job_has_a_flag() -> None:
    values = {"str": "x", "int": "7", "float": "7", "int | None": "7"}
    for setting in job_fields():
        given = flags.job_flags_given(parse(flags.flag_of(setting.name), values[setting.type]))
        assert given == {setting.name: "x" if setting.type == "str" else 7}


def test_a_flag_goes_over_the_job_file_and_that_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('ps = 3\nlease_s = 4\ncheckpoint_dir = "/c"\n')
    job = flags.job_config(parse("--job", str(file), "--ps", "2"))
    assert job == JobConfig(ps=2, lease_s=4.0, checkpoint_dir="/c")


BAD_FILES: dict[str, Any] = {
    "unknown setting 'pss'; known are mode, bound, ps, ": "pss = 3",
    "ps must be of type int, got '3'": 'ps = "3"',
    "ps must be of type int, got True": "ps = true",
    "lease_s must be of type float, got '4'": 'lease_s = "4"',
    "is not TOML": "ps 3",
}


@pytest.mark.parametrize("complaint", BAD_FILES)
def test_a_bad_job_file_is_named_with_what_is_wrong(complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(BAD_FILES[complaint])
    with pytest.raises(UsageError, match=complaint) as caught:
        flags.read_job_file(str(file))
    assert str(file) in str(caught.value)


def test_a_job_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"job file no\.toml cannot be read: No such file or directory"):
        flags.read_job_file("no.toml")


def test_a_wrong_flag_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("--ps", "two")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "test: argument --ps: invalid int value: 'two'; --help lists the flags\n"
