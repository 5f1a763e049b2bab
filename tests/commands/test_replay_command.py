"""`psruntime replay` and mistakes in its command line; tests/cluster/test_rounds.py has it repeat trainings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from psruntime.commands import replay
from psruntime.commands.replay import Comparison
from psruntime.config.process import device_names
from psruntime.core.members.messages import Machine
from psruntime.errors import UsageError


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
    assert [replay._devices(device_names(text)) for text in ("", "gpu:1", "gpu:auto", "cpu:0,cpu:1")] == [1, 1, 1, 2]
    for text in ("gpu:all", "GPU:all"):
        with pytest.raises(UsageError, match=r"^--devices gpu:all: name the devices that the workers had"):
            replay._devices(device_names(text))


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


DIFFERENCES = {f"variable_{n}": 0.0 for n in range(9)} | {"kernel": 2e-6}
DIFFERENT = {"bits_differ": {"kernel": 3}, "differ_within": (6, 7)}
FASTER = ["worker 0 computed on another processor, a fast one"]


@pytest.mark.parametrize(
    ("facts", "flags", "complaint"),
    [
        ({"bits_differ": {}}, [], ""),
        (DIFFERENT, [], "not the same to the bit, and nothing is known for which bits may differ"),
        (DIFFERENT, ["--tolerance=1e-5"], ""),
        (DIFFERENT, ["--tolerance=1e-6"], "not the same within 1e-06 (--tolerance)"),
        ({**DIFFERENT, "may_differ": FASTER}, [], ""),
        ({**DIFFERENT, "may_differ": FASTER}, ["--tolerance=1e-6"], "not the same within 1e-06 (--tolerance)"),
    ],
)
def test_the_exit_code_says_whether_it_is_the_same(
    facts: dict[str, Any],
    flags: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    of_job = {"rounds": (1, 7), "first": "model.ckpt-0", "last": "model.ckpt-7", "not_compared": ["mean"]}
    outcome = Comparison(**{**of_job, "differences": DIFFERENCES, **facts})
    monkeypatch.setattr(replay, "_replay", lambda *_: outcome)
    assert replay.main(["log", "--checkpoint-dir=c", *flags]) == bool(complaint)
    out, err = capsys.readouterr()
    assert complaint in err and err.count("\n") == bool(complaint)
    lines = out.splitlines()
    same = 10 - len(facts["bits_differ"])
    assert lines[0] == "rounds 1 to 7, from model.ckpt-0 to model.ckpt-7"
    assert [line for line in lines if "may differ" in line] == [
        f"the bits may differ: {reason}" for reason in facts.get("may_differ", [])
    ]
    assert f"of 10 variables and slots {same} are the same to the bit" in lines
    assert ("2.0e-06  kernel" in lines) == (same < 10)
    assert ("the bits differ from a round on that is among 6 to 7; at the end by:" in lines) == (same < 10)
    assert lines[-1] == "not compared, since they are not trained: mean"
    replay.main(["log", "--checkpoint-dir=c", "--json", *flags])
    printed = json.loads(capsys.readouterr().out)
    assert (printed["differences"], printed["bits_differ"]) == (DIFFERENCES, facts["bits_differ"])
    assert (printed["from"], printed["to"], printed["rounds"]) == ("model.ckpt-0", "model.ckpt-7", [1, 7])


def test_inputs_near_a_kink_explain_a_difference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    near = [f"round {number}, worker 0: an input of Relu Relu is 1.2e-07 from its kink" for number in range(8)]
    outcome = Comparison((1, 9), "a", "b", {"w": 6e-4}, {"w": 9}, [], ["--joint is given"], (1, 9), near)
    monkeypatch.setattr(replay, "_replay", lambda *_: outcome)
    assert replay.main(["log", "--checkpoint-dir=c"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-5:] == [f"{text}: rounding explains a difference from there on" for text in near[:5]]


def a_round(step: int = 1, *parts: dict[str, Any], **facts: Any) -> dict[str, Any]:
    made = [{"worker": n, "incarnation": f"{n:x}", "examples": 8.0, **part} for n, part in enumerate(parts)]
    return {"global_step": step, "plan": [1, 64, 64, 0], "parts": made, **facts}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (a_round(1, {}, {}), ""),
        (a_round(1, {}, {"examples": 5.0}), "round 1 lacks the order in which the gradients were added"),
        (a_round(1, {}, {"divisor": 1}), "round 1 lacks the order in which the gradients were added"),
        (a_round(3, {}, {}, {}), "round 3 lacks the order in which the gradients were added"),
        (a_round(3, {}, {}, {"examples": 0.0}), ""),
        (a_round(3, *[{"positions": [n]} for n in range(3)]), ""),
        (a_round(1, {}, {}, wire="bfloat16"), "gradients travelled with --wire bfloat16"),
        (a_round(1, {}, {}, top_k=0.01), "gradients travelled with --top-k 0.01"),
        ({"global_step": 1, "parts": []}, "the rounds log is of an earlier version, and does not name the plan"),
    ],
)
def test_what_a_rounds_log_does_not_have(record: dict[str, Any], reason: str) -> None:
    assert replay._losses_of([record]) == [reason] * bool(reason)


HERE = {"processor": "here", "threads": 2, "tensorflow": "2.21.0"}
MACHINES = {
    "a": HERE, "b": {**HERE, "processor": "there"}, "c": {**HERE, "threads": 4}, "d": {**HERE, "tensorflow": "2.20.1"},
    "e": {"processor": "here", "threads": 2},
}  # fmt: skip


def others(workers: dict[str, int], *ps: dict[str, Any], num_ps: int = 1) -> list[str]:
    rounds = [a_round(1, ps=[{"ps": index, **machine} for index, machine in enumerate(ps)], plan=[num_ps, 64, 64, 0])]
    return replay._others_of(workers, MACHINES, rounds, Machine(**HERE))


@pytest.mark.parametrize(
    ("worker", "reason"),
    [
        ("a", ""),
        ("b", "worker 1 computed on another processor, there"),
        ("c", "the workers and ps computed with 2, 4 threads"),
        ("d", "worker 1 computed with TensorFlow 2.20.1, and this is 2.21.0"),
        ("e", "worker 1 computed with an unknown TensorFlow"),
        ("f", "worker 1 computed on a GPU, or its processor is not in the rounds log"),
    ],
)
def test_where_a_worker_and_a_ps_computed(worker: str, reason: str) -> None:
    assert others({worker: 1}, HERE) == [reason] * bool(reason)
    if worker in MACHINES:
        of_ps = reason.replace("worker 1", "ps 1")
        assert others({"a": 0}, HERE, MACHINES[worker]) == [of_ps] * bool(of_ps)


def test_a_log_that_does_not_name_a_ps() -> None:
    assert others({"a": 0}, HERE, num_ps=2) == ["the processor of each ps is not in the rounds log"]
