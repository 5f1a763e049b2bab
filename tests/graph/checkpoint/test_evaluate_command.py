"""psruntime evaluate: the checkpoints of a folder, without a job."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.commands import evaluate
from psruntime.core.accounting.saved_state import SUFFIX, SavedState
from psruntime.core.plan.identity import ModelIdentity
from psruntime.graph.checkpoint.measured import HISTORY
from psruntime.graph.model.evaluate import CheckpointEvaluation
from psruntime.model import load_model
from psruntime.observe import evaluations
from tests.support.local_cluster import LocalCluster, train

MODEL = """
import tensorflow.compat.v1 as tf1
from psruntime import ModelSpec

def input_fn(context):
    return tf1.data.Dataset.from_tensor_slices(([[1.0], [2.0], [3.0]], [[2.0], [4.0], [6.0]])).batch(context.batch_size)

def model_fn(features, labels, mode):
    slope = tf1.get_variable("slope", [])
    loss = tf1.reduce_mean(tf1.abs(slope * features - labels))
    return ModelSpec(loss, tf1.train.GradientDescentOptimizer(0.1))
"""

Write = Callable[[int, float], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a checkpoint of a model that is called line_of_three."""
    (tmp_path / "line_of_three.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "line_of_three", raising=False)

    def write(step: int, slope: float) -> None:
        with tf1.Graph().as_default(), tf1.Session() as session:
            session.run(tf1.get_variable("slope", initializer=np.float32(slope)).initializer)
            tf1.train.Saver().save(session, str(tmp_path / "saved" / "model.ckpt"), step, write_meta_graph=False)

    return write


def test_the_newest_is_measured(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "saved"
    argv = [f"--checkpoint-dir={folder}", "--model=line_of_three", "--batch-size=2"]
    assert evaluate.main(argv) == 2
    assert capsys.readouterr().err == f"psruntime evaluate: {folder} has no checkpoint\n"
    write(10, 1.0)
    write(20, 1.5)
    assert evaluate.main(argv) == 0
    assert capsys.readouterr().out == "held out, at global step 20: loss 1.0000\n"
    assert evaluate.main([*argv, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"global_step": 20, "checkpoint": str(folder / "model.ckpt-20"), "metrics": {"loss": 1.0}}
    assert {path.name.partition(".")[0] for path in folder.iterdir()} == {"checkpoint", "model"}, "nothing is written"
    assert evaluate.main([*argv, f"--out={tmp_path / 'out'}"]) == 0
    assert evaluations.read(str(tmp_path / "out" / HISTORY)).evaluations == {20: {"loss": 1.0}}
    capsys.readouterr()
    assert evaluate.main([*argv, f"--out={tmp_path / 'out' / HISTORY / 'below_a_file'}"]) == 1
    assert "summaries failed" in capsys.readouterr().err
    for file in folder.glob("model.ckpt-20.*"):
        (folder / file.name.replace("ckpt-20", "ckpt-20.delta-25")).write_bytes(file.read_bytes())
    assert evaluate.main(argv) == 0
    assert "the rows of the newer" in capsys.readouterr().err


HEAD = """
    if CONDITION:
        head = tf1.get_variable("head", [3])
        loss += tf1.reduce_sum(tf1.abs(head))
    return ModelSpec("""


@pytest.mark.long
@pytest.mark.parametrize("trains", ["True", "False"])
def test_a_checkpoint_of_a_model_with_more_or_fewer_variables_is_not_measured(
    trains: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A variable of mode train alone, as that of an auxiliary head, is not missing."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write_with_head(condition: str) -> None:
        head = HEAD.replace("CONDITION", condition)
        text = MODEL.replace("    return ModelSpec(", head).replace("GradientDescentOptimizer(0.1)", "AdamOptimizer")
        (tmp_path / "with_a_head.py").write_text(text)
        monkeypatch.delitem(sys.modules, "with_a_head", raising=False)
        importlib.invalidate_caches()

    write_with_head(trains)
    train(LocalCluster(1), load_model("with_a_head"), 2, checkpoint_dir=str(tmp_path / "c"))
    codes = {"True": 0, "mode == 'train'": 0, "False": 2} if trains == "True" else {"True": 2}
    for measures, code in codes.items():
        write_with_head(measures)
        capsys.readouterr()
        assert evaluate.main([f"--checkpoint-dir={tmp_path / 'c'}", "--model=with_a_head", "--batch-size=3"]) == code
        out, err = capsys.readouterr()
        if code:
            assert out == "" and err.count("\n") == 1
            assert "variable head is " in err and "give the --model that it was written with" in err
        else:
            assert out.startswith("held out, at global step 2: loss ")


def test_one_that_is_removed_meanwhile_is_followed_by_the_next_and_a_damaged_list_is_one_line(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "saved"
    argv = [f"--checkpoint-dir={folder}", "--model=line_of_three"]
    write(10, 1.0)
    measure = CheckpointEvaluation.measure

    def late(self: CheckpointEvaluation, path: str) -> dict[str, float]:
        if path.endswith("-10"):
            for file in folder.glob("model.ckpt-10.*"):
                file.unlink()
            write(20, 1.5)
        return measure(self, path)

    monkeypatch.setattr(CheckpointEvaluation, "measure", late)
    assert evaluate.main(argv) == 0
    out, err = capsys.readouterr()
    assert out == "held out, at global step 20: loss 1.0000\n" and "passed over" in err and err.count("\n") == 1
    (folder / "checkpoint").write_text("what is this")
    assert evaluate.main(argv) == 1
    out, err = capsys.readouterr()
    assert out == "" and "checkpoints unreadable" in err and err.count("\n") == 1


def test_the_best_is_kept_also_if_it_is_removed_while_it_is_measured(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "saved"
    argv = [f"--checkpoint-dir={folder}", "--model=line_of_three", "--metric=loss"]
    write(10, 1.0)
    assert evaluate.main(argv) == 0
    assert "the best one so far is kept: global step 10" in capsys.readouterr().err
    kept = {path.name for path in (folder / "best").iterdir()}
    assert "model.ckpt-10.index" in kept
    measure = CheckpointEvaluation.measure

    def slowly(self: CheckpointEvaluation, path: str) -> dict[str, float]:
        for file in folder.glob("model.ckpt-2*"):
            file.unlink()  # as a job does that keeps few, while it is measured
        return measure(self, path)

    monkeypatch.setattr(CheckpointEvaluation, "measure", slowly)
    write(20, 1.5)
    assert evaluate.main(argv) == 0, "it is measured all the same"
    assert "the best one so far is kept: global step 20" in capsys.readouterr().err
    assert (folder / "best" / "model.ckpt-20.index").exists()
    kept = {path.name for path in (folder / "best").iterdir()}
    write(21, 2.0)
    for file in folder.glob("model.ckpt-21.*"):
        file.unlink()
    assert evaluate.main(argv) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert {path.name for path in (folder / "best").iterdir()} == kept, "what is gone takes the place of nobody"
    assert evaluate.main([*argv[:2], "--metric=accuracy"]) == 2
    assert "metric names accuracy, which the model does not measure; it has loss" in capsys.readouterr().err


def test_what_comes_is_measured_until_somebody_has_seen_enough(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(_: float) -> None:
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        write(step, step / 10)

    steps = iter([10, 20, 30])
    monkeypatch.setattr(evaluate, "time", SimpleNamespace(sleep=sleep))  # not that of other threads
    assert evaluate.main([f"--checkpoint-dir={tmp_path / 'saved'}", "--model=line_of_three", "--follow"]) == 130
    out, err = capsys.readouterr()
    assert err == f"psruntime evaluate: waits for a checkpoint in {tmp_path / 'saved'}\n"
    assert out == (
        "held out, at global step 10: loss 2.0000\n"
        "held out, at global step 20: loss 0.0000\n"
        "held out, at global step 30: loss 2.0000\n"
    )


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "--checkpoint-dir is missing: the folder of the job's checkpoints"),
        (["--checkpoint-dir=x", "--model=no_such_model_of_mine"], "no_such_model_of_mine"),
        (["--checkpoint-dir=x", "--batch-size=0"], "batch_size must be at least 1, got 0"),
    ],
)
def test_a_mistake_is_one_line(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--set=lr=0.1"], ""),
        ([], "--set lr: none, where the checkpoint has 0.1"),
        (
            ["--set=lr=3", "--set=n=2"],
            "--set lr: 3, where the checkpoint has 0.1; --set n: 2, where the checkpoint has none",
        ),
    ],
)
def test_other_parameters_than_those_of_the_checkpoint_are_one_line(
    argv: list[str], said: str, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(10, 1.0)
    state = SavedState(10, identity=ModelIdentity((("psruntime", "0.0.1"), ("--set lr", "0.1"))))
    (tmp_path / "saved" / f"model.ckpt-10{SUFFIX}").write_text(state.text())
    assert evaluate.main([f"--checkpoint-dir={tmp_path / 'saved'}", "--model=line_of_three", *argv]) == 0
    assert capsys.readouterr() == (
        "held out, at global step 10: loss 2.0000\n",
        f"psruntime evaluate: {said}\n" if said else "",
    )


def test_a_checkpoint_of_another_model_is_one_line(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(10, 1.0)
    (tmp_path / "line_of_three.py").write_text(MODEL.replace('"slope"', '"tilt"'))
    assert evaluate.main([f"--checkpoint-dir={tmp_path / 'saved'}", "--model=line_of_three"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "tilt" in err and err.count("\n") == 1 and "Traceback" not in err
