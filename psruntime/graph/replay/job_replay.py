"""A sync job's rounds, repeated from one of its checkpoints with the batches that its rounds log names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from psruntime.core.plan.plan import make_plan
from psruntime.core.shards.shard_messages import Shard, Sharding, ShardNews
from psruntime.errors import UsageError
from psruntime.graph.base.types import Array
from psruntime.graph.input.batches import Examples
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.pulled_model import record_specs
from psruntime.graph.replay.rounds import Difference, ReplayedPart, RoundReplay, joint_part, reader_of
from psruntime.model import TRAIN, Model

LoggedPart = Mapping[str, Any]  # of a round, as the rounds log has it


class LoggedBatches:
    """The batches of all workers.  Each process of a worker started its input again; an incarnation is of one process.

    stream: makes the input of a worker, by its index and the tag of its incarnation.
    """

    def __init__(self, stream: Callable[[int, str], InputStream]) -> None:
        self._stream = stream
        self._of_incarnation: dict[str, tuple[InputStream, Numbered | OfShards]] = {}

    def inputs(self, record: Mapping[str, Any]) -> InputStream:
        """The inputs of one member of a round."""
        return self._of(record["parts"][0])[0]

    def parts(self, record: Mapping[str, Any]) -> list[ReplayedPart]:
        """The parts of a round; a part without weight is not in the sum.

        Raises:
            UsageError: a batch is not here.
        """
        found = []
        for part in record["parts"]:
            inputs, batches = self._of(part)
            taken, size = batches.take(part), len(inputs.layout.tensors)
            minibatches = [taken[start : start + size] for start in range(0, len(taken), size)]
            divisor = part.get("divisor", len(record["parts"]))
            facts = (part["worker"], part["examples"], divisor, part.get("positions", ()), minibatches)
            found.append(ReplayedPart(*facts))
        return [part for part in found if part.weight]

    def close(self) -> None:
        for inputs, _ in self._of_incarnation.values():
            inputs.close()

    def _of(self, part: LoggedPart) -> tuple[InputStream, Numbered | OfShards]:
        if part["incarnation"] not in self._of_incarnation:
            inputs = self._stream(part["worker"], part["incarnation"])
            self._of_incarnation[part["incarnation"]] = inputs, OfShards(inputs) if inputs.shards else Numbered(inputs)
        inputs, batches = self._of_incarnation[part["incarnation"]]
        if ("shards" in part) != (inputs.shards is not None):
            does, was = ("calls", "no data shard") if inputs.shards else ("does not call", "a data shard")
            raise UsageError(
                f"{inputs.name} {does} context.shards here, and batch {part['batch']} of worker {part['worker']} was "
                f"of {was} in the job: give --model as the workers had it"
            )
        return inputs, batches


class Numbered:
    """One worker's batches by number; a number may be repeated, but none before the last is drawn.

    Where rounds have shares, a batch has `size` examples after the `first` ones of the input.
    """

    def __init__(self, inputs: InputStream) -> None:
        self._inputs = inputs
        self._examples = Examples(inputs.draw_endlessly, inputs.name)
        self._number = -1  # of the last
        self._last: list[Array] = []

    def take(self, part: LoggedPart) -> list[Array]:
        if "size" in part and part["batch"] != self._number:
            self._examples.skip(part["first"] - self._examples.taken)
            self._last, self._number = self._examples.take(part["size"]), part["batch"]
        while self._number < part["batch"]:
            self._last = self._inputs.draw_endlessly()
            self._number += 1
        return self._last


class _OneByOne:
    """A source of shards that returns each once it is `wanted`.  reason: as in ShardSource."""

    reason = "no shard is wanted"

    def __init__(self) -> None:
        self.wanted: Shard | None = None

    def take(
        self, _sharding: Sharding, _news: Sequence[ShardNews], _is_wanted: Callable[[], bool]
    ) -> tuple[Shard | None, bool]:
        shard, self.wanted = self.wanted, None
        return shard, True


class OfShards:
    """One worker's batches of data shards, in any order: a shard has the same ones each time that it is read."""

    def __init__(self, inputs: InputStream) -> None:
        self._inputs, self._source = inputs, _OneByOne()
        inputs.take_shards_from(self._source)
        self._begun = Shard(0, 1, 0, 0)  # that is read
        self._number = -1  # of its last batch
        self._last: list[Array] = []

    def take(self, part: LoggedPart) -> list[Array]:
        """Raises UsageError if a shard has no such batch here."""
        return [array for minibatch in part["shards"] for array in self._minibatch(*minibatch)]

    def _minibatch(self, epoch: int, begin: int, end: int, number: int) -> list[Array]:
        if (self._begun.begin, self._begun.end) != (begin, end) or number < self._number:
            self._begin(epoch, begin, end)
        while self._number < number:
            batch = self._inputs.draw_of_shard()
            if batch is None:
                raise UsageError(
                    f"examples {begin} to {end - 1} make {self._number + 1} batches here, and made {number + 1} at "
                    "least in the job: give --batch-size, --batch-sizes and --data-dir as the workers had them"
                )
            self._last, self._number = batch, self._number + 1
        return self._last

    def _begin(self, epoch: int, begin: int, end: int) -> None:
        while self._inputs.draw_of_shard() is not None:  # the remainder of the shard before
            pass
        self._source.wanted = self._begun = Shard(self._begun.ticket + 1, epoch, begin, end)
        self._number = -1


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
