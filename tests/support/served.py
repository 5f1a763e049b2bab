"""A model module that is exported, and a checkpoint of it by plain TensorFlow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.model import Context, load_model

MODEL = """
import numpy as np
import tensorflow.compat.v1 as tf1
from psruntime import ModelSpec

def input_fn(context):
    numbers = np.arange(24, dtype="float32").reshape(12, 2)
    words = np.array([b"a", b"b", b"c"] * 4)
    features = {"numbers": numbers, "kind": np.arange(12) % 5, "word": words, "unused": numbers}
    return tf1.data.Dataset.from_tensor_slices((features, numbers[:, 0])).batch(context.batch_size)

def model_fn(features, labels, mode):
    table = tf1.get_variable("table", [5, 3], initializer=tf1.random_normal_initializer(seed=3))
    weights = tf1.get_variable("weights", [2, 3], initializer=tf1.random_normal_initializer(seed=4))
    words = tf1.lookup.StaticHashTable(tf1.lookup.KeyValueTensorInitializer(["a", "b"], [1.0, 2.0]), -1.0)
    hidden = tf1.nn.embedding_lookup(table, features["kind"]) + tf1.matmul(features["numbers"], weights)
    score = tf1.reduce_sum(hidden, axis=1) + words.lookup(features["word"])
    loss = tf1.reduce_mean(tf1.square(score - labels))
    return ModelSpec(loss, tf1.train.GradientDescentOptimizer, predictions=PREDICTIONS)
"""
ALL = '{"score": score, "hidden": hidden}'


def as_tensor(value: Any) -> Any:
    return (
        tf.ragged.constant(value.to_list()) if isinstance(value, tf1.ragged.RaggedTensorValue) else tf1.constant(value)
    )


class Served:
    """A model module, a checkpoint of it, and what its model gives in plain TensorFlow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.argv = [f"--checkpoint-dir={folder / 'saved'}", f"--out={folder / 'out' / '1'}", "--batch-size=5"]

    def write(self, text: str) -> None:
        sys.modules.pop("a_served_model", None)
        (self.folder / "a_served_model.py").write_text(text)
        self.argv = [*[word for word in self.argv if "--model" not in word], "--model=a_served_model"]

    def train(self, model: str, steps: int) -> None:
        """Writes a checkpoint after so many steps of Adam."""
        loaded = load_model(model)
        with tf1.Graph().as_default(), tf1.Session() as session:
            data = loaded.input_fn(Context("train", 0, 1, 64, "", 0)).repeat()
            spec = loaded.model_fn(*tf1.data.make_one_shot_iterator(data).get_next(), "train")
            step = tf1.train.AdamOptimizer(2e-3).minimize(spec.loss)
            session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
            for _ in range(steps):
                session.run(step)
            tf1.train.Saver().save(session, str(self.folder / "saved" / "model.ckpt"), steps, write_meta_graph=False)

    def trained(self, model: str = "a_served_model", rows: int = 12) -> tuple[dict[str, Any], dict[str, Any]]:
        """Writes a checkpoint; returns the features of so many held-out examples, and the predictions for them."""
        loaded = load_model(model)
        with tf1.Graph().as_default(), tf1.Session() as session:
            batch = tf1.data.make_one_shot_iterator(loaded.input_fn(Context("eval", 0, 1, rows, "", 0))).get_next()
            features, labels = session.run(batch)
            spec = loaded.model_fn(tf.nest.map_structure(as_tensor, features), tf1.constant(labels), "eval")
            session.run(
                [tf1.global_variables_initializer(), tf1.local_variables_initializer(), tf1.tables_initializer()]
            )
            tf1.train.Saver().save(session, str(self.folder / "saved" / "model.ckpt"), 40, write_meta_graph=False)
            predictions = session.run(spec.predictions)
        as_dict = predictions if isinstance(predictions, dict) else {"predictions": predictions}
        return features if isinstance(features, dict) else {"features": features}, as_dict
