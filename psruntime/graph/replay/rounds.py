"""Repeats the rounds of a job in one process: each part by itself, the sums and the updates bucket by bucket."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.plan.plan import Plan
from psruntime.errors import UsageError
from psruntime.faults import Place, fate_of, first_line
from psruntime.graph.base.checkpoint_reader import readable
from psruntime.graph.base.graphs import model_graph
from psruntime.graph.base.types import Array, Feed
from psruntime.graph.buckets.bucket_store import GLOBAL_STEP
from psruntime.graph.buckets.optimizers import learning_rates_at, rules_of
from psruntime.graph.input.batches import BatchLayout
from psruntime.graph.replay.plain_buckets import Gradient, PlainBucket, PlainBuckets, mean_of, of_bucket, sum_of, times
from psruntime.graph.replay.plain_model import PlainModel
from psruntime.model import Model


@dataclass(frozen=True)
class ReplayedPart:
    """One worker's part in a round.

    weight: of its batch.  divisor: of its gradient.  positions: as in the rounds log; empty if the order does not
    matter or is unknown.  minibatches: of each its arrays, in the order of the layout.
    """

    worker: int
    weight: float
    divisor: float
    positions: Sequence[int]
    minibatches: Sequence[Sequence[Array]]


def joint_part(parts: Sequence[ReplayedPart]) -> ReplayedPart:
    """The parts of a round as one, with one mini-batch of all their examples."""
    minibatches = [arrays for part in parts for arrays in part.minibatches]
    joint = [np.concatenate(of_all) for of_all in zip(*minibatches, strict=True)]
    return ReplayedPart(parts[0].worker, sum(part.weight for part in parts), 1.0, (), [joint])


class Difference(NamedTuple):
    """The difference of a variable or slot from that of a checkpoint: entries whose bits differ, and the largest
    difference over the largest entry here, infinite where one is not a finite number."""

    entries: int
    largest: float


class RoundReplay:
    """Variables, a session and an update for each bucket.  Close it at the end.

    model: see PlainModel.  A round is that of mode sync: clip_norm and clip_value are of the joint gradient, in which
    a row of a table counts once, and the learning rate is that of the global step before.

    Raises:
        UsageError: the model cannot be repeated, or it failed.
    """

    def __init__(self, model: Model, layout: BatchLayout, plan: Plan, any_size: bool = False) -> None:
        """any_size: as of PlainModel."""
        with model_graph().as_default() as self._graph:
            tables = {table.name for group in plan.groups for table in group.tables}
            self.model = PlainModel(model, layout, tables, any_size)
            self._rules = rules_of(self.model.spec, f"model_fn of {model.name}")
            self._rates = [tf1.placeholder(tf1.float32, []) for _ in self._rules]
            variables = self.model.variables
            self._buckets = [
                PlainBucket(bucket, variables, self._rules, self._rates, self.model.is_sparse(bucket))
                for ps in range(plan.num_ps)
                for bucket in plan.on(ps)
                if bucket.variable in self.model.used
            ]
            aggregated = [bucket.ps for bucket in plan.buckets if bucket.aggregation]
            self._places = {  # the number of buckets of a round -> the positions of the trained ones among them
                places[-1]: places[:-1]
                for others in ([GLOBAL_STEP.ps], [GLOBAL_STEP.ps, *aggregated])
                for places in [self._behind(others)]
            }
            self._all = PlainBuckets(plan, self._buckets, variables)
            self._sums = [tf1.placeholder(tf1.float64) for _ in self._buckets]
            squares = [tf1.reduce_sum(tf1.square(total)) for total in self._sums]
            self._scales = [tf1.placeholder(tf1.float64, []) for _ in self._buckets]
            products = [tf1.math.multiply_no_nan(s, tf1.square(x)) for s, x in zip(squares, self._scales, strict=True)]
            self._squares = [tf1.add_n(of_ps) for of_ps in self._by_ps(products)]
        self._session = tf1.Session(graph=self._graph, config=tf1.ConfigProto(device_count={"GPU": 0}))
        self._session.run(self._all.initial)

    def take(self, value: Callable[[str], Array], source: str) -> None:
        """Assigns variables and slots.  value: of a tensor of `source`, by its name.

        Raises:
            UsageError: one is not there, or has another shape.
        """
        try:
            self._all.take(self._session, value)
            self.model.initialise(self._session, value)
        except (tf1.errors.OpError, ValueError, KeyError, IndexError) as error:
            raise UsageError(f"{source} does not fit the model: {first_line(error)}") from error

    def values(self) -> dict[str, Array]:
        """Variables and slots in their own shapes and dtypes, by their names in a checkpoint."""
        return self._all.values(self._session)

    def step(self, parts: Sequence[ReplayedPart], global_step: int, learning_rate_scale: float = 1.0) -> None:
        """One round.  parts: those with a weight above 0.  global_step: before it.

        Raises:
            UsageError: a batch has another weight than its part.
            UserCodeError, PassingError: an operation failed, as the table of faults has it.
        """
        self.model.at(self._session, global_step)
        gradients = [self._gradient(part) for part in parts]
        sums = [self._sum(number, parts, gradients) for number in range(len(self._buckets))]
        factor = self._factor(sums, sum(part.weight for part in parts))
        feed: Feed = {}
        for rate, value in zip(self._rates, learning_rates_at(self._rules, global_step), strict=True):
            feed[rate] = np.float32(value) * np.float32(learning_rate_scale)
        for each, (total, scale) in zip(self._buckets, sums, strict=True):
            feed |= each.fed(self._clipped(times(total, factor * scale)))
        try:
            self._session.run(self._all.update, feed)
        except (tf1.errors.OpError, ValueError) as error:
            text = f"the update of global step {global_step} failed: {first_line(error)}"
            raise fate_of(error, Place.EVALUATOR, text) from error

    def near_kinks(self, parts: Sequence[ReplayedPart]) -> list[str]:
        """Which inputs of a round are within rounding of a kink, one text for each worker and operation."""
        return [
            f"worker {part.worker}: {text}"
            for part in parts
            for arrays in part.minibatches
            for text in self.model.near_kinks(self._session, arrays)
        ]

    def differences(self, checkpoint: str) -> dict[str, Difference]:
        """The difference of each variable and slot from that of the checkpoint.

        Raises:
            UsageError: the checkpoint cannot be read.
        """
        value, values = reader_of(checkpoint), self.values()
        try:
            return {name: _difference(ours, value(name)) for name, ours in values.items()}
        except (tf1.errors.OpError, ValueError) as error:
            raise UsageError(f"checkpoint {checkpoint} cannot be compared: {first_line(error)}") from error

    def close(self) -> None:
        self._session.close()

    def _gradient(self, part: ReplayedPart) -> dict[str, Gradient]:
        """The gradient of a part by itself, by variable."""
        taken = [self.model.gradient(self._session, arrays, part.divisor) for arrays in part.minibatches]
        if (weight := sum(weight for weight, _ in taken)) != part.weight:
            raise UsageError(
                f"a batch of worker {part.worker} weighs {weight:g} here, and {part.weight:g} in the job: give "
                "--model, --batch-size, --batch-sizes, --data-dir, --seed and --local-steps as the workers had them"
            )
        return {name: mean_of([(weight, own[name]) for weight, own in taken]) for name in taken[0][1]}

    def _sum(
        self, number: int, parts: Sequence[ReplayedPart], gradients: Sequence[dict[str, Gradient]]
    ) -> tuple[Gradient, float]:
        """The sum of bucket `number`, in the order in which it added the parts, and its scale."""
        bucket = self._buckets[number].bucket
        came = sorted(zip(parts, gradients, strict=True), key=lambda pair: self._position(pair[0], number))
        return sum_of([(part.weight * part.divisor, of_bucket(bucket, own)) for part, own in came])

    def _behind(self, others: Sequence[int]) -> list[int]:
        """The position of each bucket in a round, in which those on `others`, a ps each, are last on their ps; and
        their number."""
        own = [number + sum(ps < each.bucket.ps for ps in others) for number, each in enumerate(self._buckets)]
        return [*own, len(self._buckets) + len(others)]

    def _position(self, part: ReplayedPart, number: int) -> int:
        """The number of contributions that bucket `number` had before that of a part.  A round has the buckets of
        variables with an aggregation if its steps change these."""
        positions = part.positions
        if len(positions) < 2:
            return positions[0] if positions else 0
        places = self._places.get(len(positions))
        if places is None:
            raise UsageError(
                f"a round has {len(positions) - 1} buckets in the log, and {len(self._buckets)} here: give --model as "
                "the workers had it"
            )
        return positions[places[number]]

    def _factor(self, sums: Sequence[tuple[Gradient, float]], weight: float) -> float:
        """The factor from a sum over all examples to the joint gradient: the mean, within clip_norm (round_runs.py)."""
        limit = self.model.spec.clip_norm
        if limit is None:
            return 1.0 / weight
        fed = {sum_: total.values.astype(np.float64) for sum_, (total, _) in zip(self._sums, sums, strict=True)}
        fed |= {scale_: scale for scale_, (_, scale) in zip(self._scales, sums, strict=True)}
        norm = math.sqrt(sum(map(float, self._session.run(self._squares, fed)))) / weight
        return limit / max(norm, limit) / weight

    def _clipped(self, gradient: Gradient) -> Gradient:
        limit = self.model.spec.clip_value
        if limit is None:
            return gradient
        limit = gradient.values.dtype.type(limit)
        return gradient._replace(values=np.clip(gradient.values, -limit, limit))

    def _by_ps(self, of_buckets: Sequence[Any]) -> list[list[Any]]:
        every_ps = sorted({each.bucket.ps for each in self._buckets})
        pairs = list(zip(self._buckets, of_buckets, strict=True))
        return [[own for each, own in pairs if each.bucket.ps == ps] for ps in every_ps]


def reader_of(checkpoint: str) -> Callable[[str], Array]:
    """Reads a tensor of a checkpoint by its name.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        reader = tf1.train.load_checkpoint(readable(checkpoint))
    except (tf1.errors.OpError, ValueError) as error:
        raise UsageError(f"checkpoint {checkpoint} cannot be read: {first_line(error)}") from error
    return lambda name: np.asarray(reader.get_tensor(name))


def _difference(ours: Array, theirs: Array) -> Difference:
    if ours.shape != theirs.shape:
        raise ValueError(f"shape {list(theirs.shape)} there, {list(ours.shape)} here")
    entries = int(np.count_nonzero(_bits(ours) != _bits(theirs)))
    wide = [each.astype(np.float64) for each in (ours, theirs)]
    largest = float(np.abs(wide[0] - wide[1]).max(initial=0.0) / max(np.abs(wide[0]).max(initial=0.0), 1e-30))
    return Difference(entries, 0.0 if not entries else largest if np.isfinite(largest) else np.inf)


def _bits(values: Array) -> Array:
    return np.ascontiguousarray(values).reshape(-1).view(f"u{values.itemsize}")
