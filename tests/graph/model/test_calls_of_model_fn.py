"""How often a worker calls model_fn, which may take a minute each time, before it joins; and what that finds."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from psruntime.config import JobConfig
from psruntime.config.process import ProcessConfig, WorkerConfig
from psruntime.errors import UsageError
from psruntime.graph.loop.built import Built

MODEL = """
import tensorflow.compat.v1 as tf

from psruntime import ModelSpec

CALLS = []


def input_fn(context):
    return tf.data.Dataset.from_tensors((tf.ones([4]), tf.ones([]))).batch(2)


def model_fn(features, labels, mode):
    CALLS.append(mode)
    weights = tf.get_variable("weights" + SUFFIX.get(mode, ""), [4, 1])
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weights)[:, 0] - labels))
    return ModelSpec(loss, tf.train.GradientDescentOptimizer, 0.1, metrics={"error": tf.metrics.mean(loss)})
"""


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "calls_" + request.node.name.partition("[")[0]

    def build(index: int, suffix: dict[str, str], **job: Any) -> list[str]:
        """The modes of the calls."""
        sys.modules.pop(name, None)
        (tmp_path / f"{name}.py").write_text(f"SUFFIX = {suffix}\n{MODEL}")
        Built(
            ProcessConfig(index=index), WorkerConfig(model=name), JobConfig(**job), 0, lambda *_, **__: None,
            ExitStack(),
        )  # fmt: skip
        calls: list[str] = __import__(name).CALLS
        made = list(calls)
        calls.clear()
        return made

    return build


def test_training_is_built_twice_and_the_evaluation_once_by_worker_0(build: Any, tmp_path: Path) -> None:
    best = {"keep_best": "min:error", "checkpoint_dir": str(tmp_path)}
    assert build(1, {}) == ["train", "train"]
    assert build(1, {}, **best) == ["train", "train"]
    assert build(0, {}) == ["train", "train", "eval"]
    assert build(0, {}, **best) == ["train", "train", "eval", "eval"]


def test_an_evaluation_with_other_variables_is_refused_before_worker_0_joins(build: Any) -> None:
    other = r"makes variable weights_eval float32\[4, 1\], and made none such when it was called first"
    with pytest.raises(UsageError, match=other):
        build(0, {"eval": "_eval"})
