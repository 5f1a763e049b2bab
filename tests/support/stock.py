"""The same model trained by stock TensorFlow, with tf1.train.Saver: what checkpoints are exchanged with."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.graph.input.input_stream import InputStream
from psruntime.model import Context, Model


class Stock:
    """A graph with a Saver of all its variables and a global step, and a session on it.

    device: as tf1.device takes it.  partitions: number of slices that every variable is made of.
    scope: variable scope in which the optimizer is applied.
    """

    def __init__(
        self,
        model: Model,
        session: Callable[[Any], Any] = lambda graph: tf1.Session(graph=graph),
        device: Any = None,
        sharded: bool = False,
        partitions: int = 0,
        scope: str = "",
        with_step: bool = True,
    ) -> None:
        self._inputs = InputStream(model, Context("train", 0, 1, 8, "", 3))
        partitioner = tf1.fixed_size_partitioner(partitions) if partitions else None
        with tf1.Graph().as_default() as graph, tf1.device(device):
            global_step = tf1.train.get_or_create_global_step() if with_step else None
            features, labels, self._batch = self._inputs.layout.placeholders()
            with tf1.variable_scope("", partitioner=partitioner):
                spec = model.model_fn(features, labels, "train")
            assert spec.optimizer is not None
            with tf1.variable_scope(scope) if scope else nullcontext():
                self._update = spec.optimizer(spec.learning_rate).minimize(spec.loss, global_step=global_step)
            self._saver = tf1.train.Saver(sharded=sharded)
            self._initialise = tf1.global_variables_initializer()
        self._graph = graph
        self._session = session(graph)

    def initialise(self) -> Stock:
        self._session.run(self._initialise)
        return self

    def restore(self, path: str) -> Stock:
        with self._graph.as_default():
            self._saver.restore(self._session, path)
        return self

    def train(self, steps: int) -> Stock:
        """On the next batches of the model's input."""
        for _ in range(steps):
            self._session.run(self._update, dict(zip(self._batch, self._inputs.draw_endlessly(), strict=True)))
        return self

    def save(self, folder: Any, step: int) -> str:
        os.makedirs(folder, exist_ok=True)
        with self._graph.as_default():
            path: str = self._saver.save(self._session, f"{folder}/stock.ckpt", global_step=step)
        return path


def contents(path: str) -> dict[str, Any]:
    """All logical tensors of a checkpoint."""
    reader = tf1.train.load_checkpoint(path)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
