"""Repeats a sync job's rounds from one of its checkpoints, and compares with the later ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from psruntime.core.plan.plan import make_plan
from psruntime.graph.base.types import Array
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.pulled_model import record_specs
from psruntime.graph.replay.logged_batches import LoggedBatches
from psruntime.graph.replay.rounds import Difference, RoundReplay, joint_part, reader_of
from psruntime.model import TRAIN, Model

Record = Mapping[str, Any]  # of a round, as the rounds log has it


@dataclass
class Comparison:
    """differences: of each variable and slot from the last checkpoint, or from the last with which bits differ.

    apart: the first and the last of the rounds, between two checkpoints, in which bits began to differ; None if none
    do.  near_kinks: inputs within rounding of a kink in the rounds in which differences above the tolerance began.
    model_draws, model_reads: as draws and reads of PlainModel.  not_compared: variables that are not trained.
    """

    differences: dict[str, Difference] = field(default_factory=dict)
    apart: tuple[int, int] | None = None
    near_kinks: list[str] = field(default_factory=list)
    model_draws: list[str] = field(default_factory=list)
    model_reads: list[str] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)


class JobReplay:
    """stream: as of LoggedBatches.  plan_sizes: as of JobConfig, for a log without them.

    joint: whether the joint batch of a round is computed as one.
    """

    def __init__(
        self, model: Model, stream: Callable[[int, str], InputStream], plan_sizes: Sequence[int], joint: bool
    ) -> None:
        self._model, self._stream, self._plan_sizes, self._joint = model, stream, plan_sizes, joint

    def compare(self, rounds: Sequence[Record], checkpoints: Mapping[int, str], tolerance: float) -> Comparison:
        """checkpoints: global step -> path, from the one before the first round to that after the last.

        Raises:
            UsageError: a batch, a checkpoint or the model does not fit.
        """
        found, before = Comparison(), min(checkpoints)
        jumped: tuple[int, int] | None = None  # checkpoints between which differences above the tolerance began
        for step, replay, _ in self._run(rounds, checkpoints[before]):
            if step in checkpoints:
                differences = replay.differences(checkpoints[step])
                every, differ = differences.values(), any(each.entries for each in differences.values())
                if differ or not found.apart:
                    found.differences = differences
                found.apart = found.apart or ((before + 1, step) if differ else None)
                jumped = jumped or ((before, step) if any(each.largest > tolerance for each in every) else None)
                found.model_draws, found.model_reads = replay.model.draws, replay.model.reads
                found.not_compared = replay.model.not_compared
                before = step
        if jumped:
            until = [record for record in rounds if record["global_step"] <= jumped[1]]
            for step, _, near in self._run(until, checkpoints[min(checkpoints)], looks_after=jumped[0]):
                found.near_kinks += [f"round {step}, {text}" for text in near]
        return found

    def _run(
        self, rounds: Sequence[Record], checkpoint: str, looks_after: int | None = None
    ) -> Iterator[tuple[int, RoundReplay, list[str]]]:
        """Repeats the rounds from a checkpoint on; after each, yields (its global step, the replay, its inputs near a
        kink, in the rounds in which they are looked for)."""
        with closing(LoggedBatches(self._stream)) as batches:
            begins = value = reader_of(checkpoint)
            source = f"checkpoint {checkpoint}"
            for _, of_one_plan in groupby(rounds, key=lambda record: record.get("plan")):
                records = list(of_one_plan)
                with closing(self._laid_out(batches, records[0])) as replay:
                    replay.take(value, source)
                    for record in records:
                        parts = batches.parts(record)
                        parts = [joint_part(parts)] if self._joint else parts
                        step = record["global_step"]
                        near = replay.near_kinks(parts) if looks_after is not None and step > looks_after else []
                        replay.step(parts, step - 1, record.get("learning_rate_scale", 1.0))
                        yield step, replay, near
                    value, source = _first_of(replay.values(), begins), "what another plan had"

    def _laid_out(self, batches: LoggedBatches, record: Record) -> RoundReplay:
        inputs = batches.inputs(record)
        num_ps, *plan_sizes = record.get("plan") or [1, *self._plan_sizes]
        plan = make_plan(record_specs(self._model, inputs, TRAIN), num_ps, *plan_sizes)
        return RoundReplay(self._model, inputs.layout, plan, self._joint)


def _first_of(values: Mapping[str, Array], others: Callable[[str], Array]) -> Callable[[str], Array]:
    """Reads a value of `values`, or else of `others`: variables that are not trained, which stay as they are."""
    return lambda name: values[name] if name in values else others(name)
