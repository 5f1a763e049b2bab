"""What a training left, against its rounds repeated in plain TensorFlow, to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from psruntime.core.plan.plan import Plan
from psruntime.graph.checkpoint.listing import CheckpointList, step_of
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.replay.rounds import Difference, ReplayedPart, RoundReplay, reader_of
from psruntime.model import Context, Model

BATCH = 8


def layout_of(model: Model) -> Any:
    with closing(InputStream(model, Context("train", 0, 1, BATCH, "", 3))) as inputs:
        return inputs.layout


def rounds_of_one(model: Model, rounds: int, minibatches: int = 1) -> list[list[ReplayedPart]]:
    """Those of one worker, of the batches of its input."""
    with closing(InputStream(model, Context("train", 0, 1, BATCH, "", 3), minibatches)) as inputs:
        size, parts = len(inputs.layout.tensors), []
        for _ in range(rounds):
            arrays = inputs.draw_endlessly()
            each = [arrays[start : start + size] for start in range(0, len(arrays), size)]
            parts.append([ReplayedPart(0, float(BATCH * minibatches), 1.0, (), each)])
        return parts


def differing(model: Model, plan: Plan, rounds: Sequence[Sequence[ReplayedPart]], folder: str) -> dict[str, Difference]:
    """Variables and slots whose bits differ, between the oldest and the newest checkpoint of a folder."""
    paths = sorted((step_of(path) or 0, path) for path in CheckpointList(folder).listed())
    (first, begin), (last, end) = paths[0], paths[-1]
    assert (first, last) == (0, len(rounds))
    with closing(RoundReplay(model, layout_of(model), plan)) as replay:
        replay.take(reader_of(begin), begin)
        for step, parts in enumerate(rounds):
            replay.step(parts, step)
        found = replay.differences(end)
    assert found
    return {name: each for name, each in found.items() if each.entries}
