"""A small model with a table, and its export with the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ai_edge_litert.interpreter import Interpreter

from psruntime.commands import export
from tests.support.served import Served

SMALL = """
import numpy as np
import tensorflow.compat.v1 as tf1
from psruntime import ModelSpec

def input_fn(context):
    numbers = np.random.RandomState(0).normal(size=[40, 6]).astype("float32")
    features = {"numbers": numbers, "kind": np.arange(40) % 5}
    return tf1.data.Dataset.from_tensor_slices((features, numbers[:, 0])).batch(context.batch_size)

def model_fn(features, labels, mode):
    kernel = tf1.get_variable("kernel", [6, 4], initializer=tf1.random_normal_initializer(seed=4))
    table = tf1.get_variable("table", [5, 4], initializer=tf1.random_normal_initializer(seed=5))
    bias = tf1.get_variable("bias", [4], initializer=tf1.random_normal_initializer(seed=6))
    looked_up = tf1.nn.embedding_lookup(table, features["kind"])
    score = tf1.reduce_sum(tf1.nn.relu(tf1.matmul(features["numbers"], kernel) + bias) + looked_up, axis=1)
    loss = tf1.reduce_mean(tf1.square(score - labels))
    metrics = {
        "error": tf1.metrics.mean_absolute_error(labels, score),
        "labels": tf1.metrics.mean(labels),
        "mixed": tf1.metrics.mean(score + tf1.reduce_sum(bias)),
    }
    return ModelSpec(loss, tf1.train.GradientDescentOptimizer, predictions=PREDICTIONS, metrics=metrics)
"""
SPARSE = (
    ("tf1.matmul(features[", "tf1.sparse.sparse_dense_matmul(features["),
    ("(context.batch_size)", "(5).map(lambda f, l: ({**f, 'numbers': tf1.sparse.from_dense(f['numbers'])}, l))"),
)


def exported(served: Served, *more: str) -> tuple[Path, dict[str, Any]]:
    """(the folder, its report)."""
    assert export.main([*served.argv, *more]) == 0
    folder = served.folder / "out" / "1"
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return folder, {**report, "rows": {row["name"]: row for row in report["rows"]}}


def lite_rt(content: bytes, features: dict[str, Any]) -> dict[str, Any]:
    """What LiteRT's runtime gives, with nothing of ours."""
    found: dict[str, Any] = Interpreter(model_content=content).get_signature_runner("serving_default")(**features)
    return found
