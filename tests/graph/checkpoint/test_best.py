"""The best checkpoint by a held-out metric: measured from its own files, and kept whatever else is removed."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.config.values import Metric
from psruntime.errors import UsageError
from psruntime.graph.checkpoint.folder import CheckpointFolder
from psruntime.graph.checkpoint.measured import BestCheckpoint
from psruntime.graph.model.evaluate import CheckpointEvaluation
from psruntime.model import Context, Model, ModelSpec
from tests.graph.checkpoint.test_folder import text_of, write
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.local_cluster import LocalCluster, linear_model, train
from tests.support.stock import contents


def measured_model() -> Model:
    """The linear model, which learns for six steps, and then unlearns; "error" is its mean absolute error."""
    model = linear_model(OPTIMIZERS["adam"], learning_rate=lambda step: 0.05 if step < 6 else -0.1)

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        spec = model.model_fn(features, labels, mode)
        error = tf1.metrics.mean(tf1.sqrt(spec.loss))
        return replace(spec, metrics={"error": error} if mode == "eval" else None)

    return Model(model.name, lambda context: model.input_fn(context).take(5), model_fn)


@pytest.mark.long
def test_the_best_of_a_training_is_kept(tmp_path: Path) -> None:
    model, log = measured_model(), []
    evaluation = CheckpointEvaluation(model, Context("eval", 0, 1, 8, "", 3))
    assert evaluation.names == ["loss", "error"]
    best = BestCheckpoint(
        evaluation, str(tmp_path), Metric("error", False), lambda event, **facts: log.append((event, facts))
    )
    settings = {"save_steps": 2, "keep": 1, "slice_bytes": 64, "checkpoint_dir": str(tmp_path)}

    def measure(path: str, global_step: int) -> None:
        best.offer(path, global_step)
        best.wait()

    train(LocalCluster(2), model, 10, saved=measure, **settings)
    assert [(event, facts["global_step"]) for event, facts in log[:4]] == [("measured", n) for n in (2, 4, 6, 8)]
    values = {facts["global_step"]: facts["error"] for _, facts in log}
    assert values[6] == min(values.values()) < values[10]
    facts = json.loads((tmp_path / "best" / "best.json").read_text())
    assert facts == {"metric": "error", "greatest_is_best": False, "value": values[6], "global_step": 6,
                     "checkpoint": "model.ckpt-6"}  # fmt: skip
    path = tf1.train.latest_checkpoint(str(tmp_path / "best"))
    assert contents(path)["global_step"] == 6
    assert evaluation.measure(path)["error"] == values[6]
    assert tf1.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-10")
    assert sorted(os.listdir(tmp_path / "best"))[0] == "best.json" and not list(tmp_path.rglob(".*"))


STEPS = itertools.count(1)


class Told:
    """An evaluation that gives what the checkpoint's files say."""

    def measure(self, path: str) -> dict[str, float]:
        text = text_of(path)
        if text == "wrong":
            raise UsageError("input_fn failed")
        return {"loss": float(text)}


def offer(folder: Path, values: list[str], metric: tuple[str, bool] = ("loss", False)) -> list[tuple[str, bool | str]]:
    """Writes a checkpoint of each value and offers it to a new process's keeper; what it logs of each."""
    log: list[tuple[str, Any]] = []
    best = BestCheckpoint(Told(), str(folder), Metric(*metric), lambda event, **facts: log.append((event, facts)))
    checkpoints = CheckpointFolder(str(folder), keep=1)
    for value in values:
        step = next(STEPS)
        best.offer(write(checkpoints, step, value), step)
        best.wait()
    return [(event, facts.get("kept", facts.get("reason"))) for event, facts in log]


def kept(folder: Path) -> str:
    path = CheckpointFolder(str(folder / "best"), keep=1).newest()
    assert path
    return text_of(path)


def test_it_is_known_over_restarts(tmp_path: Path) -> None:
    assert offer(tmp_path, ["3", "2", "nan", "4"]) == [
        ("measured", True),
        ("measured", True),
        *[("measured", False)] * 2,
    ]
    assert kept(tmp_path) == "2"
    assert offer(tmp_path, ["2.5", "wrong", "2"]) == [
        ("measured", False),
        ("best_failed", "input_fn failed"),
        ("measured", False),
    ]
    assert offer(tmp_path, ["1"]) == [("measured", True)]
    assert offer(tmp_path, ["0.5", "0.7"], ("loss", True)) == [("measured", True), ("measured", True)]
    assert kept(tmp_path) == "0.7"


def test_a_metric_that_is_not_measured_is_told(tmp_path: Path) -> None:
    told = ("best_failed", "keep_best names recall, which the model does not measure; it has loss")
    assert offer(tmp_path, ["1"], ("recall", True)) == [told]


@pytest.mark.parametrize("spoil", ["another checkpoint", "no number", "no list"])
def test_a_value_that_is_not_of_the_checkpoint_there_counts_for_nothing(spoil: str, tmp_path: Path) -> None:
    offer(tmp_path, ["2"])
    note = tmp_path / "best" / "best.json"
    if spoil == "another checkpoint":
        note.write_text(json.dumps({**json.loads(note.read_text()), "global_step": 1000, "value": 0.0}))
    elif spoil == "no number":
        note.write_text("{")
    else:
        shutil.rmtree(tmp_path / "best")
    assert offer(tmp_path, ["3"]) == [("measured", True)]
    assert kept(tmp_path) == "3"


def test_the_best_stays_known_when_its_step_comes_again(tmp_path: Path, monkeypatch: Any) -> None:
    """After a rollback the same global steps are saved anew."""
    monkeypatch.setattr("tests.graph.checkpoint.test_best.STEPS", iter([7, 7, 7, 8]))
    accuracy = ("loss", True)
    assert offer(tmp_path, ["0.5", "0.9", "0.1", "0.2"], accuracy) == [
        ("measured", True),
        ("measured", True),
        ("measured", False),
        ("measured", False),
    ]
    assert kept(tmp_path) == "0.9"


def fail(*_: Any) -> None:
    raise OSError("no space")


def test_the_best_stays_known_when_the_next_is_not_listed(tmp_path: Path, monkeypatch: Any) -> None:
    """As when the process is killed between the note and the list."""
    offer(tmp_path, ["2"])
    better = write(CheckpointFolder(str(tmp_path), keep=1), 99, "1")
    with monkeypatch.context() as context:
        context.setattr(CheckpointFolder, "publish", fail)
        best = BestCheckpoint(Told(), str(tmp_path), Metric("loss", False), lambda *_, **__: None)
        best.offer(better, 99)
        best.wait()
    assert json.loads((tmp_path / "best" / "best.json").read_text())["global_step"] == 99
    assert offer(tmp_path, ["3"]) == [("measured", False)]
    assert kept(tmp_path) == "2"


def test_where_there_are_no_hard_links_it_is_copied(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(*_args: Any) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    assert offer(tmp_path, ["3", "2"]) == [("measured", True)] * 2
    assert kept(tmp_path) == "2"


class Slow(Told):
    """Measures a checkpoint when it is let go."""

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()

    def measure(self, path: str) -> dict[str, float]:
        self.begun.set()
        assert self.let_go.wait(60)
        return super().measure(path)


def test_no_step_waits_for_a_measurement_and_the_newest_is_the_next(tmp_path: Path) -> None:
    measured: list[Any] = []
    log: list[Any] = []
    slow, checkpoints = Slow(), CheckpointFolder(str(tmp_path), keep=3)
    best = BestCheckpoint(
        slow, str(tmp_path), Metric("loss", False), lambda event, **facts: log.append((event, facts["global_step"])),
        lambda *facts: measured.append(facts),
    )  # fmt: skip
    best.offer(write(checkpoints, 1, "3"), 1)
    assert slow.begun.wait(60)
    best.offer(write(checkpoints, 2, "1"), 2)
    best.offer(write(checkpoints, 3, "2"), 3)
    assert log == [("passed_over", 2)]
    slow.let_go.set()
    best.close()
    assert measured == [(1, {"loss": 3.0}, (1, 3.0)), (3, {"loss": 2.0}, (3, 2.0))]


def test_it_is_measured_every_so_many_steps_and_the_last_one(tmp_path: Path) -> None:
    steps: list[int] = []
    checkpoints = CheckpointFolder(str(tmp_path), keep=1)
    best = BestCheckpoint(
        Told(), str(tmp_path), Metric("loss", False), lambda *_, **__: None,
        lambda step, *_: steps.append(step), every=10,
    )  # fmt: skip
    for step in (4, 10, 14, 19, 21, 8, 14, 19):  # 8: after a rollback
        best.offer(write(checkpoints, step, "1"), step)
        best.wait()
    assert steps == [10, 21, 8, 19]
    best.offer(write(checkpoints, 20, "1"), 20)
    best.close()
    assert steps == [10, 21, 8, 19, 20]
