"""Seeds of random operations: each worker, and each mini-batch of a step, draws numbers of its own.

TensorFlow combines the seed of an operation with that of its graph once, when the operation is made.  So the graph of a
worker moves its seed by the worker's index, and a copy of a part of the graph moves the seed of each operation in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import tensorflow.compat.v1 as tf1
from tensorflow.python.util import _pywrap_determinism

from psruntime.graph.base.types import Graph, Proto

DEFAULT_SEED = 87654321  # of a graph whose seed is not set: tensorflow/python/framework/random_seed.py
SPACE = 2**31 - 1  # seeds are below it
STRIDE = 1_000_003  # a prime, so that the seeds of two workers meet for far apart indices only


def is_deterministic() -> bool:
    """Whether TF_DETERMINISTIC_OPS asks for deterministic operations: each that draws numbers needs a seed then."""
    return bool(_pywrap_determinism.is_enabled())


def model_graph() -> Graph:
    """A graph for a model; its operations have seeds if they need any."""
    graph = tf1.Graph()
    if is_deterministic():
        graph.seed = DEFAULT_SEED
    return graph


class WorkerGraph(tf1.Graph):  # type: ignore[misc]
    """A graph in which worker `index` draws numbers of its own.

    Every seed of an operation is combined with that of its graph, so the graph's is moved by the index.
    Worker 0 draws what plain TensorFlow draws.  Initial values are the same on every worker.
    """

    def __init__(self, index: int) -> None:
        super().__init__()
        self._index = index
        self.seed = DEFAULT_SEED if is_deterministic() else None

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


def as_on_worker_0() -> AbstractContextManager[None]:
    """While open, operations of the current graph are seeded as on worker 0."""
    graph = tf1.get_default_graph()
    return graph.initial_values() if isinstance(graph, WorkerGraph) else nullcontext()


class Reseeded:
    """Copy `number` of functions, from those of a graph's `library`, FunctionDefLibrary.

    functions: those that had to be copied, for the library of the copied part.
    """

    def __init__(self, library: Proto, number: int) -> None:
        self._definitions: Mapping[str, Proto] = {f.signature.name: f for f in library.function}
        self._number = number
        self._names: dict[str, str] = {}  # function -> its copy, or itself if it draws nothing
        self.functions: list[Proto] = []

    def reseed(self, node: Proto) -> bool:
        """Changes a NodeDef that draws numbers, or calls a function that does; returns whether it was changed."""
        changed = False
        if "seed2" in node.attr and (node.attr["seed"].i or node.attr["seed2"].i):  # 0 and 0: no seed was given
            node.attr["seed2"].i = (node.attr["seed2"].i + self._number * STRIDE) % SPACE
            changed = True
        for value in node.attr.values():
            for function in [value.func] if value.HasField("func") else value.list.func:
                copied = self._copied(function.name)
                changed |= copied != function.name
                function.name = copied
        if node.op in self._definitions:
            copied = self._copied(node.op)
            changed |= copied != node.op
            node.op = copied
        return changed

    def _copied(self, name: str) -> str:
        if name not in self._names:
            self._names[name] = name  # one that calls itself, meanwhile
            if name in self._definitions:
                copy = type(self._definitions[name])()
                copy.CopyFrom(self._definitions[name])
                if sum(self.reseed(node) for node in copy.node_def):
                    copy.signature.name = self._names[name] = f"{name}_minibatch_{self._number}"
                    self.functions.append(copy)
        return self._names[name]
