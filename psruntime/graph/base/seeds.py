"""Random operations of a model: the same seeds in model_fn give other numbers on every worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow.compat.v1 as tf1

DEFAULT_SEED = 87654321  # of a graph whose seed is not set: tensorflow/python/framework/random_seed.py
SPACE = 2**31 - 1  # seeds are below it
STRIDE = 1_000_003  # a prime, so that the seeds of two workers meet for far apart indices only


class WorkerGraph(tf1.Graph):  # type: ignore[misc]
    """A graph in which worker `index` draws numbers of its own.

    Every seed of an operation is combined with that of its graph, so the graph's is moved by the index.
    Worker 0 draws what plain TensorFlow draws.  Initial values are the same whoever computes them.
    """

    def __init__(self, index: int) -> None:
        super().__init__()
        self._index = index

    @property
    def seed(self) -> int | None:
        given: int | None = self._seed
        if self._index == 0:
            return given
        return ((DEFAULT_SEED if given is None else given) + self._index * STRIDE) % SPACE

    @seed.setter
    def seed(self, seed: int | None) -> None:
        self._seed = seed

    @contextmanager
    def initial_values(self) -> Iterator[None]:
        """While open, operations are seeded as on worker 0."""
        index, self._index = self._index, 0
        try:
            yield
        finally:
            self._index = index
