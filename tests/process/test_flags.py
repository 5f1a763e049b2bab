"""Command lines and job files."""

from __future__ import annotations

import argparse
import importlib
import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from psruntime.config import JobConfig
from psruntime.config.process import DEFAULT_COORDINATOR, ProcessConfig, WorkerConfig
from psruntime.config.settings import HEADINGS, flag_of, settings_of
from psruntime.errors import UsageError
from psruntime.process import flags
from psruntime.process.job_file import read_job_file


def parse(*argv: str) -> argparse.Namespace:
    return parser().parse_args(["--index", "0", *argv])


def parser() -> flags.Parser:
    parser = flags.Parser("test", "a test", first=("index", "ps"))
    flags.add_process_flags(parser)
    flags.add_security_flags(parser, serves_job=True)
    parser.add_settings(WorkerConfig)
    flags.add_job_file_flag(parser)
    parser.add_settings(JobConfig)
    return parser


def test_defaults_are_those_of_the_configs() -> None:
    arguments = parse()
    assert flags.process_config(arguments) == ProcessConfig(index=0)
    assert flags.worker_config(arguments) == WorkerConfig()
    assert JobConfig(**flags.job_settings(arguments)) == JobConfig()
    assert flags.given(arguments, JobConfig) == {}


def test_every_setting_of_the_job_has_a_flag() -> None:
    values = {"str": "x", "int": "7", "float": "7", "int | None": "7", "float | None": "7"}
    for setting in settings_of(JobConfig):
        given = flags.given(parse(flag_of(setting.name), values[setting.type]), JobConfig)
        text = str(Path("x").absolute()) if setting.name in ("checkpoint_dir", "warm_start") else "x"
        assert given == {setting.name: text if setting.type == "str" else 7}


def test_a_flag_goes_over_the_job_file_and_that_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('ps = 3\nlease_s = 4\ncheckpoint_dir = "/c"\n')
    job = JobConfig(**flags.job_settings(parse("--job", str(file), "--ps", "2")))
    assert job == JobConfig(ps=2, lease_s=4.0, checkpoint_dir="/c")


def test_what_a_ps_is_given_is_the_job_file_and_over_it_the_flags(tmp_path: Path) -> None:
    """So that every ps may have the same command: only what is given is compared with the job."""
    file = tmp_path / "job.toml"
    file.write_text('ps = 3\ncheckpoint_dir = "c"\n')
    given = flags.job_settings(parse("--job", str(file), "--ps", "2"))
    assert given == {"ps": 2, "checkpoint_dir": str(Path("c").absolute())}


BAD_FILES: dict[str, Any] = {
    "unknown setting 'pss'; did you mean ps\\?": "pss = 3",
    "unknown setting 'zzz'; known are mode, bound, schedule, ps, ": "zzz = 3",
    'ps must be a whole number, got "3"': 'ps = "3"',
    "ps must be a whole number, got true": "ps = true",
    "train_steps must be a whole number, got 1.5": "train_steps = 1.5",
    'lease_s must be a number, got "4"': 'lease_s = "4"',
    "mode must be a text, got 3": "mode = 3",
    "is not TOML": "ps 3",
}


@pytest.mark.parametrize("complaint", BAD_FILES)
def test_a_bad_job_file_is_named_with_what_is_wrong(complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(BAD_FILES[complaint])
    with pytest.raises(UsageError, match=complaint) as caught:
        read_job_file(str(file))
    assert str(file) in str(caught.value)


def test_a_whole_number_may_be_written_as_1e4(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text("train_steps = 1e4")
    for argv in (["--train-steps=1e4"], ["--train-steps", "10_000"], ["--train-steps=10000.0"], ["--job", str(file)]):
        assert flags.job_settings(parse(*argv))["train_steps"] == 10_000


@pytest.mark.parametrize("folder", ["gone", "./gone", "/gone", "file:///gone"])
@pytest.mark.parametrize("command", ["run", "worker", "task", "commands.evaluate", "commands.plan", "commands.compare"])
def test_a_folder_of_data_that_is_not_there_is_refused_before_anything_starts(
    command: str, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = {
        "worker": ["--index=0"],
        "task": ["--worker-hosts=localhost:1", "--ps-hosts=127.0.0.2:1", "--role=worker", "--index=0", "--insecure"],
    }
    needed["commands.evaluate"] = ["--checkpoint-dir=c"]
    argv = [f"--data-dir={folder}", "--model=psruntime.templates.my_model", *needed.get(command, [])]
    assert importlib.import_module(f"psruntime.{command}").main(argv) == 2
    assert (
        f"--data-dir {folder.removeprefix('file://')} is not there: no such file or folder" in capsys.readouterr().err
    )


@pytest.mark.parametrize("folder", ["gs://bucket/data", "s3://bucket/data", "", "."])
def test_a_folder_of_data_elsewhere_is_not_looked_at(folder: str) -> None:
    assert flags.worker_config(parse(f"--data-dir={folder}")).data_dir == folder


@pytest.mark.parametrize(
    ("argv", "variable", "address"),
    [
        ([], None, DEFAULT_COORDINATOR),
        ([], "", DEFAULT_COORDINATOR),
        ([], "env:1", "env:1"),
        (["word:1"], "env:1", "word:1"),
        (["--coordinator=flag:1"], "env:1", "flag:1"),
        (["[::1]:1"], None, "[::1]:1"),
        (["word:1", "--json"], None, "word:1"),
    ],
)
def test_a_command_that_asks_a_job_has_its_address_as_a_word_or_a_flag_or_from_the_environment(
    argv: list[str], variable: str | None, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(flags.COORDINATOR, raising=False)
    if variable is not None:
        monkeypatch.setenv(flags.COORDINATOR, variable)
    parser = flags.Parser("test", "a test")
    flags.add_coordinator_word(parser)
    flags.add_coordinator_flags(parser)
    parser.add_argument("--json", action="store_true")
    assert flags.coordinator_of(parser.parse_args(argv)) == address


@pytest.mark.parametrize("command", ["status", "control", "dashboard"])
@pytest.mark.parametrize("given", ["word", "variable"])
def test_an_address_without_a_port_is_one_line(
    command: str, given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = "ps0:two"
    monkeypatch.setenv(flags.COORDINATOR, address if given == "variable" else "")
    argv = [*([address] if given == "word" else []), *(["pause"] if command == "control" else [])]
    assert importlib.import_module(f"psruntime.commands.{command}").main(argv) == 2
    said = f"psruntime {command}: address 'ps0:two' is not host:port, for example {DEFAULT_COORDINATOR}\n"
    assert capsys.readouterr() == ("", said)


def test_a_job_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"job file no\.toml cannot be read: No such file or directory"):
        read_job_file("no.toml")


def test_a_wrong_flag_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("--ps", "two")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "test: argument --ps: must be a whole number, got 'two'; --help lists the flags\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("setup",), "unrecognized arguments: setup; --help lists the flags"),
        (("rents",), "unrecognized argument rents; write --model rents; --help lists the flags"),
        (("rents.py",), "unrecognized argument rents.py; write --model rents; --help lists the flags"),
        (("--train-step", "3"), "unrecognized argument --train-step; did you mean --train-steps?"),
        (("--train_steps=3",), "unrecognized argument --train_steps; did you mean --train-steps?"),
        (("--modle", "x"), "unrecognized argument --modle; did you mean --mode or --model?"),
        (("--bogus",), "unrecognized argument --bogus; --help lists the flags"),
        (("--workers=2",), "unrecognized argument --workers; did you mean --min-workers or --max-workers?"),
        (("--zzz", "--ps", "two"), "unrecognized argument --zzz; --help lists the flags"),
        (("five",), "unrecognized arguments: five; --help lists the flags"),
        (("--train-steps=1.5",), "argument --train-steps: must be a whole number, got '1.5'; --help lists the flags"),
        (("--train-steps=inf",), "argument --train-steps: must be a whole number, got 'inf'; --help lists the flags"),
        (("--lease=ten",), "argument --lease: must be a number, got 'ten'; --help lists the flags"),
        (("ps0:2222",), "unrecognized argument ps0:2222; write --coordinator ps0:2222; --help lists the flags"),
        *(
            (
                (flag, "0.1"),
                f"unrecognized argument {flag}; the model says it, as learning_rate of its ModelSpec, which may be a "
                "parameter of --set, as --set lr=0.1; --help lists the flags",
            )
            for flag in ("--lr", "--learning-rate", "--learning_rate")
        ),
    ],
)
def test_an_unknown_flag_is_one_line_with_what_was_probably_meant(
    argv: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rents.py").touch()
    with pytest.raises(SystemExit) as ended:
        parse(*argv)
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"test: {said}\n")


def test_a_misspelt_flag_is_named_before_one_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--indx", "0"])
    assert capsys.readouterr().err == "test: unrecognized argument --indx; did you mean --index?\n"
    with pytest.raises(SystemExit):
        parser().parse_args([])
    assert "required: --index" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mode": "asinc"}, "mode must be one of async, bounded, sync, got 'asinc'; did you mean async?"),
        (
            {"on_nan": "stp"},
            "on_nan must be one of stop, continue, got 'stp'; did you mean stop?",
        ),
        ({"on_nan": "x"}, "on_nan must be one of stop, continue, got 'x'"),
    ],
)
def test_a_misspelt_choice_is_named_with_what_was_probably_meant(settings: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        JobConfig(**settings)
    assert str(refused.value) == said


def test_the_help_begins_with_the_most_used_and_shows_all_by_subject_if_asked() -> None:
    shown = {flag: help_of(parser(), flag) for flag in ("--help", "--help-all")}
    found = {
        flag: re.findall(r"^(\S.*):\n((?:  .*\n)+)", text, re.MULTILINE) for flag, text in shown.items()
    }  # fmt: skip
    assert [title for title, _ in found["--help"]] == [flags.MOST_USED]
    assert [title for title, _ in found["--help-all"]] == [flags.MOST_USED, *HEADINGS]
    for sections in found.values():
        most_used = re.findall(r"^  (--\S+)", sections[0][1], re.MULTILINE)
        assert most_used == ["--help-all", "--index", "--ps"], "in the order of `first`"
    for setting in settings_of(JobConfig):
        assert flag_of(setting.name) in shown["--help-all"]


def help_of(parser: flags.Parser, flag: str) -> str:
    with pytest.raises(SystemExit, match="0"), redirect_stdout(io.StringIO()) as shown:
        parser.parse_args([flag])
    return shown.getvalue()


def test_the_help_shows_all_choices() -> None:
    shown = " ".join(help_of(parser(), "--help-all").split())
    chosen = [setting for setting in settings_of(JobConfig) if setting.metadata["choices"]]
    assert len(chosen) == 10
    for setting in chosen:
        assert f"{{{','.join(setting.metadata['choices'])}}}" in shown


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("ps", ["--index=0", "--job={}"]),
        ("commands.replay", ["{}", "--checkpoint-dir=c"]),
        ("commands.trace", ["{}"]),
        ("commands.tables", ["--checkpoint-dir=c", "--export={}"]),
        ("commands.compare", ["--out={}"]),
    ],
)
@pytest.mark.parametrize("url", ["gs://bucket/x.npz", "s3://bucket/x.npz", "file://other/x.npz", "file:x.npz"])
def test_a_url_of_another_machine_is_refused_before_anything_is_done(
    command: str, argv: list[str], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"psruntime.{command}").main([word.format(url) for word in argv])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(rf"{url} is (not in a file system|no path) of this machine; give ", line)


def test_a_file_url_of_this_machine_counts_as_its_path(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("train_steps = 7\n")
    for url in (f"file://{tmp_path}", f"file://localhost{tmp_path}", f"file:{tmp_path}"):
        assert flags.job_settings(parse(f"--job={url}/job.toml"))["train_steps"] == 7
