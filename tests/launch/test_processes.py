"""The processes of a job on this machine, as data."""

from __future__ import annotations

from pathlib import Path

import pytest

from psruntime import ps, run, worker
from psruntime.commands import status
from psruntime.launch.children import LocalJob, ProcessSpec


def job(*argv: str) -> LocalJob:
    return run.local_job(run.parser().parse_args(argv))[0]


def test_a_job_of_defaults() -> None:
    local = job()
    settings = ("--train-steps=2000", "--linger=0.0", "--min-workers=1")
    assert local.first("a:0") == ProcessSpec(
        "ps-0", ("psruntime.ps", "--index", "0", "--coordinator", "a:0", *settings)
    )
    (only,) = local.others("a:7")
    where = ("psruntime.worker", "--index", "0", "--coordinator", "a:7")
    assert only == ProcessSpec("worker-0", (*where, "--connect-timeout=60"))
    assert local.progress("a:7") == ("psruntime", "status", "--follow", "--coordinator", "a:7")


def test_settings_go_to_whom_they_are_for() -> None:
    tls = [f"--{flag}=f" for flag in ("tls-ca", "tls-cert", "tls-key", "token-file")]
    local = job(
        "--ps", "2", "--workers", "2", "--min-workers", "1", "--mode", "sync", "--insecure", *tls,
        "--batch-size", "8", "--model", "my_model", "--connect-timeout", "5",
    )  # fmt: skip
    specs = [local.first("a:0"), *local.others("a:7")]
    assert [spec.name for spec in specs] == ["ps-0", "ps-1", "worker-0", "worker-1"]
    for spec in specs:
        assert set(tls) <= set(spec.arguments)
        assert ("--mode=sync" in spec.arguments) == ("--min-workers=1" in spec.arguments) == (spec.name == "ps-0")
        assert "--insecure" in spec.arguments  # each may have a token to send
        assert ("--batch-size=8" in spec.arguments) == spec.name.startswith("worker")
        assert ("--connect-timeout=5" in spec.arguments) == (spec.name != "ps-0")
    assert set(tls) <= set(local.progress("a:7"))


def test_devices_and_their_memory_reach_the_workers_alone() -> None:
    flags = ("--devices=gpu:auto", "--gpu-memory=20GiB")
    local = job("--ps=2", "--workers=2", *flags)
    for spec in [local.first("a:0"), *local.others("a:7")]:
        wanted = flags if spec.name.startswith("worker") else ()
        assert tuple(word for word in spec.arguments if "gpu" in word) == wanted


def test_a_local_rank_is_refused_where_each_worker_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Its default in a worker, the index, is right: all workers are on this machine."""
    with pytest.raises(SystemExit, match="2"):
        run.main(["--workers=2", "--devices=gpu:auto", "--local-rank=1"])
    said = "psruntime run: unrecognized argument --local-rank, which has no effect here; --help lists the flags\n"
    assert capsys.readouterr() == ("", said)
    assert not [word for spec in job("--workers=2").others("a:7") for word in spec.arguments if "rank" in word]


def test_the_programs_accept_what_they_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-d").mkdir()
    local = job("--data-dir=-d", "--keep-best=accuracy", "--checkpoint-dir=a b", "--token-file=t")
    for spec in [local.first("a:0"), *local.others("a:7")]:
        program, *argv = spec.arguments
        parser = ps._parser() if program == "psruntime.ps" else worker._parser()
        assert program in ("psruntime.ps", "psruntime.worker")
        parser.parse_args(argv)
    assert status.PROG.split() == list(local.progress("a:7")[:2])


def test_the_defaults_that_the_help_says_are_those_of_the_job() -> None:
    parser = run.parser()
    parser.shows_all = True
    shown = " ".join(parser.format_help().split())
    assert f"global step at which the job ends (default: {run.TRAIN_STEPS}, with --epochs none)" in shown
    assert "late processes exit with 0 (default: 0)" in shown
    local = job("--workers", "3")
    assert (local.job["train_steps"], local.job["linger_s"], local.job["min_workers"]) == (2000, 0.0, 3)
    assert "train_steps" not in job("--epochs", "3").job, "the epochs end it"
    assert job("--epochs", "3", "--train-steps", "5").job["train_steps"] == 5, "or what comes first"
