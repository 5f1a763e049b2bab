"""Assigns variables on the ps the initial values that model_fn reads from checkpoints (graph/model/pretrained.py).

The chief reads them in chunks, also for tables and for the parts of large variables, so none is whole in a process.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import tensorflow.compat.v1 as tf1

from psruntime.core.recovery.checkpoint_names import Kind
from psruntime.errors import some
from psruntime.faults import Place, fate_of
from psruntime.graph.base.errors import LOST_SESSION, first_line
from psruntime.graph.base.literal_paths import readable
from psruntime.graph.base.types import Session
from psruntime.graph.checkpoint.entries import CheckpointPart, parts_of
from psruntime.graph.checkpoint.transfer import Reader, Source
from psruntime.graph.model.pretrained import Pretrained
from psruntime.graph.recovery.warm_start import MOST_NAMES
from psruntime.graph.step.train_graph import TrainGraph


class PretrainedValues:
    """The pretrained values of a model, for worker `index` as the chief; its operations are in the current graph."""

    def __init__(self, graph: TrainGraph, index: int) -> None:
        self._sources: dict[str, dict[str, Source]] = {}  # checkpoint -> variable -> where its value is
        pretrained = graph.model.captured.pretrained
        for name, each in pretrained.items():
            self._sources.setdefault(each.path, {})[name] = Source(each.path, each.tensor)
        own = [part for part in parts_of(graph) if part.entry.kind is Kind.VARIABLE] if pretrained else []
        parts = [_of_variable(graph, part, pretrained[part.of]) for part in own if part.of in pretrained]
        with tf1.name_scope("pretrained"):
            self._readers = {
                path: Reader([part for part in parts if part.of in sources], index, graph.fence, keeps=True)
                for path, sources in self._sources.items()
            }

    def assign(self, session: Session, every_ps: Collection[int], incarnation: int) -> list[dict[str, object]]:
        """Overwrites the variables on these ps; returns facts of each checkpoint for the log.

        Raises:
            UserCodeError, PassingError: one cannot be read, as the table of faults has it.
            ReplacedError: a ps no longer admits the incarnation.
        """
        facts: list[dict[str, object]] = []
        for path, reader in self._readers.items():
            sources = self._sources[path]
            try:
                there = {name: source._replace(path=readable(path)) for name, source in sources.items()}
                reader.read(session, there, False, every_ps, incarnation)
            except LOST_SESSION:
                raise
            except (tf1.errors.OpError, OSError) as error:
                text = f"init_from_checkpoint of model_fn, {path}: {first_line(error)}"
                raise fate_of(error, Place.INITIAL, text) from error
            facts.append({"path": path, "variables": len(sources), "names": some(sorted(sources), MOST_NAMES)})
        return facts


def _of_variable(graph: TrainGraph, part: CheckpointPart, given: Pretrained) -> CheckpointPart:
    """The same, as a part of the tensor of the variable's initial value, under the name of the variable.

    A part of a partitioner has its offset in the whole, unless the tensor is that part alone.
    """
    entry = replace(part.entry, name=part.of)
    partition = graph.model.captured.partitions.get(part.of)
    if partition is None or given.slice_spec:
        return replace(part, entry=entry)
    shape = next(spec.shape for spec in graph.plan.specs if spec.name == part.of)
    begin = tuple(here - there for here, there in zip(part.begin, partition.offset, strict=True))
    return replace(part, entry=replace(entry, shape=shape), begin=begin)
