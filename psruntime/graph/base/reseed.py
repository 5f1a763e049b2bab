"""Random operations of a copied part of a graph: those that were given a seed draw other numbers than the originals.

TensorFlow combines the seeds of an operation once, when it is made; a copy of it would begin the same sequence anew.
So the second of its seeds is moved, also in the functions that are called, which are copied for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psruntime.graph.base.seeds import SPACE, STRIDE


class Reseeded:
    """Copy `number` of functions, from those of a graph's `library`, FunctionDefLibrary.

    functions: those that had to be copied, for the library of the copied part.
    """

    def __init__(self, library: Any, number: int) -> None:
        self._definitions: Mapping[str, Any] = {f.signature.name: f for f in library.function}
        self._number = number
        self._names: dict[str, str] = {}  # function -> its copy, or itself if it draws nothing
        self.functions: list[Any] = []

    def reseed(self, node: Any) -> bool:
        """Changes a NodeDef, if it draws or calls what does; whether it was changed."""
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
