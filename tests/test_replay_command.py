"""`psruntime replay` and mistakes in its command line; tests/cluster/test_rounds.py has it repeat trainings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psruntime import replay
from psruntime.errors import UsageError
from psruntime.replay import Outcome


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ([], "psruntime replay: --checkpoint-dir is missing: the folder of the job's checkpoints"),
        (["--checkpoint-dir=c"], "psruntime replay: rounds log rounds.jsonl cannot be read: No such file or directory"),
        (
            ["--batch-sizes=0:1,1"],
            "psruntime replay: --batch-sizes must be WORKER:SIZE, with commas between them, got '1'",
        ),
        (["--batch-sizes=0:0"], "psruntime replay: --batch-sizes must be WORKER:SIZE, with commas between them, got"),
    ],
)
def test_a_mistake_is_one_line(
    flags: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert replay.main(["rounds.jsonl", *flags]) == 2
    said = capsys.readouterr().err
    assert said.startswith(complaint) and said.count("\n") == 1


def test_of_the_devices_of_the_workers_the_number_counts() -> None:
    assert [replay._devices(text) for text in ("", "gpu:1", "gpu:auto", "cpu:0,cpu:1")] == [1, 1, 1, 2]
    for text in ("gpu:all", "GPU:all"):
        with pytest.raises(UsageError, match=r"^--devices gpu:all: name the devices that the workers had"):
            replay._devices(text)


def test_a_local_stage_is_refused() -> None:
    rounds = [{"global_step": 5}, {"global_step": 6, "local": True}, {"global_step": 7}]
    assert [each["global_step"] for each in replay._between(rounds, 6, 7, "log")] == [7]
    with pytest.raises(Exception, match="log has a local stage, which ends at global step 6 and cannot be repeated"):
        replay._between(rounds, 5, 7, "log")


@pytest.mark.parametrize(("first", "last", "missing"), [(3, 6, 4), (5, 9, 9), (1, 6, 2), (0, 5, 1), (9, 12, 11)])
def test_the_first_round_that_is_missing_between_two_checkpoints_is_named(first: int, last: int, missing: int) -> None:
    """A job that was in another mode in between has none of its global steps 4 and 5."""
    rounds = [{"global_step": step} for step in (3, 6, 7, 8, 10)]
    assert [each["global_step"] for each in replay._between(rounds, 5, 8, "log")] == [6, 7, 8]
    with pytest.raises(Exception, match=f"log has no round {missing}, .* those from {first + 1} to {last} are needed"):
        replay._between(rounds, first, last, "log")


def test_a_round_that_is_there_twice_is_not_taken() -> None:
    rounds = [{"global_step": step} for step in (1, 2, 2, 3)]
    with pytest.raises(Exception, match="log has no round 3"):
        replay._between(rounds, 0, 3, "log")


@pytest.mark.parametrize(("largest", "code"), [(9e-6, 0), (2e-5, 1)])
def test_the_exit_code_says_whether_it_is_the_same(
    largest: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    differences = {f"variable_{n}": n * 1e-9 for n in range(9)} | {"kernel": largest}
    outcome = Outcome((1, 7), "model.ckpt-0", "model.ckpt-7", differences, ["mean"])
    monkeypatch.setattr(replay, "_replay", lambda *_: outcome)
    assert replay.main(["log", "--checkpoint-dir=c"]) == code
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == "rounds 1 to 7, from model.ckpt-0 to model.ckpt-7"
    assert lines[1] == f"{largest:.1e}  kernel" and len(lines) == 7
    assert lines[-1] == "not compared, since workers have copies of their own: mean"
    assert ("not the same within 1e-05 (--tolerance)" in said.err) == bool(code)
    replay.main(["log", "--checkpoint-dir=c", "--json"])
    assert json.loads(capsys.readouterr().out)["differences"] == differences
