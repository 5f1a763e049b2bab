"""What the push step and the round step share: the pull, the user's model, its gradients, and each bucket's update."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.core.plan.buckets import WAYS, Bucket
from psruntime.core.plan.plan import Plan
from psruntime.graph.base.graphs import ancestors
from psruntime.graph.base.server import worker_device
from psruntime.graph.base.types import Tensor
from psruntime.graph.buckets.apply import RowFlags, StalenessWeight, Update, bucket_update, subtracting_update
from psruntime.graph.buckets.bucket_store import BucketStore, ChiefFence, PlanStores, PsControl
from psruntime.graph.buckets.gradient import BucketGradient, Wire, all_finite, clipped, global_norm
from psruntime.graph.buckets.optimizers import BucketOptimizer, Rule, rule_of, rules_of
from psruntime.graph.embedding.id_rows import of_ids
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.gradients import Towers, bucket_gradients, with_minibatches
from psruntime.graph.model.pulled_model import PulledModel, build_pulled_model
from psruntime.graph.push.aggregation import Aggregation
from psruntime.graph.push.pushed_gradient import largest_entries, packed_gradient
from psruntime.graph.push.step_messages import PushRequest
from psruntime.graph.step.train_graph import RoundGraph, TrainGraph, step_marks
from psruntime.model import TRAIN, Model


def log_plan(graph: TrainGraph, is_packed: bool, log: Callable[..., None]) -> None:
    """Logs the plan, and the variables that train in another way, or at another cost, than the user may expect.

    is_packed: whether the plan puts variables together.
    """
    plan = graph.plan
    log("plan", variables=len(plan.trained), buckets=len(plan.buckets))
    alone = [spec.name for spec in plan.trained if spec.whole]
    if alone and is_packed:
        log(
            "unpacked", variables=" ".join(alone), reason="each has a constraint, or an optimizer that may need "
            "all of it: it is not one of those that are known to treat every entry alike",
        )  # fmt: skip
    if graph.dense_updates:
        pieces = [piece for bucket in plan.buckets if bucket.name in graph.dense_updates for piece in bucket.pieces]
        log(
            "dense_updates", tables=" ".join(dict.fromkeys(piece.variable for piece in pieces)),
            bytes=sum(graph.dense_updates.values()), reason="every step reads and writes all rows of these tables and "
            "of their slots, that many bytes, as AdamOptimizer of tf.train does; psruntime.optimizers.LazyAdam reads "
            "and writes the rows that have a gradient",
        )  # fmt: skip
    if own := graph.model.worker_copies.own:
        log(
            "own_copies", variables=" ".join(own), reason="each worker changes its own copy, and a checkpoint has the "
            "chief's; give aggregation=tf.VariableAggregation.SUM to tf.get_variable where the changes of all count",
        )  # fmt: skip
    if graph.untrained:
        log("untrained", variables=" ".join(graph.untrained), reason="the loss does not depend on them")
    if graph.unmoved:
        log(
            "unmoved", variables=" ".join(graph.unmoved),
            reason="no step runs their updates; give them in ModelSpec.updates, for example layer.updates",
        )  # fmt: skip


Gradients = dict[str, BucketGradient]  # by the name of the bucket


class TrainedBucket(NamedTuple):
    """A bucket that the model trains: its gradient on the worker, and its update on the ps.

    subtract: the update by which a change is taken off as it is.
    row_flags: as in TrainGraph.  by_staleness: lowers the learning rate; None: nothing does.
    """

    store: BucketStore
    gradient: BucketGradient
    optimizer: BucketOptimizer
    update: Update
    subtract: Update
    row_flags: tuple[RowFlags, ...]
    by_staleness: StalenessWeight | None

    @property
    def name(self) -> str:
        return self.store.bucket.name

    @property
    def ps(self) -> int:
        return self.store.bucket.ps


class AggregatedBucket(NamedTuple):
    """The bucket of a variable with an aggregation.  pushed: what a step made of it, on the worker."""

    store: BucketStore
    pushed: BucketGradient
    aggregation: Aggregation


@dataclass(frozen=True)
class StepSetup:
    """What a step is built from, for worker `index`, in the current graph.

    has_local_rounds: whether the job has any: in mode sync those are built, in the others a step fetches its weight.
    """

    model: Model
    inputs: InputStream
    plan: Plan
    job: JobConfig
    index: int
    controls: list[PsControl]
    towers: Towers
    has_local_rounds: bool = False

    @property
    def wire(self) -> Wire:
        return Wire(tf1.as_dtype(self.job.wire), self.job.has_error_feedback, self.job.top_k)

    def pulled_model(self, begins_last: bool = False) -> PulledModel:
        """Pulls the parameters and builds the user's model on them; see `build_pulled_model`."""
        stores = PlanStores(self.plan, self.job.max_workers)
        with self.towers.scope():
            return build_pulled_model(self.model, self.inputs, TRAIN, stores, self.index, self.wire, begins_last)

    def rules(self, pulled: PulledModel) -> list[Rule]:
        """The optimizers of the model, by variable."""
        return rules_of(pulled.spec, f"model_fn of {self.model.name}")

    def gradients(self, pulled: PulledModel, divisor: Tensor = None) -> tuple[PulledModel, Gradients]:
        """The model with all mini-batches of a step, and its gradients, divided by the divisor, float64 []."""
        with self.towers.scope():
            gradients = bucket_gradients(pulled, self.plan, self.index, divisor)
        return with_minibatches(pulled, gradients, self.inputs, self.index, self.towers)

    def clipped(self, pulled: PulledModel, gradients: Gradients) -> Gradients:
        """The gradients of this worker, clipped by themselves by the model's `clip_norm`."""
        with tf1.device(worker_device(self.index)):
            return clipped(gradients, pulled.spec.clip_norm, pulled.spec.clip_value)

    def aggregated(self, pulled: PulledModel) -> list[AggregatedBucket]:
        """The buckets of variables with an aggregation that a step changes; pulled: with all mini-batches."""
        made = pulled.aggregated.made([pulled.spec.loss, *tf1.nest.flatten(pulled.updates)])
        return [
            AggregatedBucket(
                pulled.stores[name], each.pushed, Aggregation(each.copy.spec.aggregation, each.is_assigned)
            )
            for name, each in made.items()
        ]

    def is_finite(self, pulled: PulledModel, gradients: Iterable[BucketGradient]) -> Tensor:
        """Whether the loss of this run and all that it pushes are finite, bool [] on the worker.

        No ps takes a push before it knows, so an infinite entry keeps all of a push from being applied.  Where bad
        batches are skipped the answer waits for the updates, too: a step that fails in the model has pushed nothing
        then, and its batch can be left out.
        """
        after = tf1.nest.flatten(pulled.updates) if self.job.skips_bad_batches else []
        with tf1.device(worker_device(self.index)), tf1.control_dependencies(after):
            return tf1.reduce_all(tf1.stack([tf1.is_finite(pulled.spec.loss), *all_finite(gradients)]))

    def weight(self, pulled: PulledModel, finite: Tensor) -> Tensor:
        """What the batch of a step weighs, float64 [] on the worker; 0 unless loss and gradients are finite."""
        with tf1.device(worker_device(self.index)):
            examples = tf1.cast(pulled.examples, tf1.float64)
            return tf1.where(finite, examples, tf1.zeros_like(examples))

    def trained_buckets(self, pulled: PulledModel, gradients: Gradients, request: PushRequest) -> list[TrainedBucket]:
        """The buckets that have gradients, with their updates.  request: brings the learning rates to each ps."""
        rules = self.rules(pulled)
        trained = []
        for bucket in self.plan.buckets:
            if bucket.name in gradients:
                store = pulled.stores[bucket.name]
                rates = request.on[bucket.ps].learning_rates
                by_staleness = self._by_staleness(bucket, rules, rates)
                rates = by_staleness.rates if by_staleness else rates
                optimizer = BucketOptimizer(rules, bucket, rates, self.wire.sparsifies(bucket))
                if by_staleness:
                    by_staleness.of_gradient = optimizer.is_of_sums
                gradient, constraint = gradients[bucket.name], pulled.captured.constraints.get(bucket.variable)
                update = bucket_update(optimizer, store, constraint, pulled.step_read)
                by_row = gradient.indices is not None and optimizer.is_by_row and constraint is None
                flags = _row_flags(pulled, store) if self.job.delta_every and by_row else ()
                update = _noted(pulled, store, optimizer, update, flags)
                subtract = subtracting_update(store, constraint)
                subtract = flags[0].noting(subtract) if flags else subtract
                trained.append(TrainedBucket(store, gradient, optimizer, update, subtract, flags, by_staleness))
        return trained

    def _by_staleness(self, bucket: Bucket, rules: list[Rule], rates: list[Tensor]) -> StalenessWeight | None:
        rule = self.job.staleness_rule
        numbers = self.controls[bucket.ps].numbers
        return StalenessWeight(rule, bucket.ps, numbers, rates, rule_of(bucket.variable, rules)) if rule else None

    def sent(self, bucket: TrainedBucket, counts: Tensor) -> BucketGradient:
        """The gradient of the bucket as it is pushed.  counts: bool [], whether it does."""
        if self.wire.sparsifies(bucket.store.bucket):
            momentum = bucket.optimizer.momentum
            return largest_entries(self.wire, bucket.name, bucket.gradient, momentum, counts, self.index)
        return packed_gradient(self.wire, bucket.name, bucket.gradient, counts, self.index)

    def handles(
        self,
        pulled: PulledModel,
        request: PushRequest,
        trained: list[TrainedBucket],
        step: dict[str, Any],
        gradients: Gradients,
        finite: Tensor,
        rounds: RoundGraph | None = None,
        divisor: Tensor = None,
    ) -> TrainGraph:
        """The finished graph.

        step: what the mode adds to the fetches of a step.  gradients: before their limits.  finite: as `is_finite`.
        divisor: as of `make_divisor`, float64 []; None: the gradient is not divided.
        """
        step = {"loss": pulled.spec.loss, "finite": finite, "updates": pulled.updates, **step}
        read_step = pulled.global_step.master.read_value()[0]
        step["marks"] = step_marks(pulled, self.plan, finite, self.index)
        return TrainGraph(
            graph=tf1.get_default_graph(),
            plan=self.plan,
            model=pulled,
            request=request,
            controls=self.controls,
            fence=ChiefFence(self.controls, self.index),
            step=step,
            gradient_norm=self._norm(gradients, divisor),
            optimizers={bucket.name: bucket.optimizer for bucket in trained},
            row_flags={bucket.name: bucket.row_flags for bucket in trained if bucket.row_flags},
            untrained=self._untrained({bucket.name for bucket in trained}),
            unmoved=_unmoved(pulled, step),
            dense_updates=_dense_updates(trained),
            read_step=read_step,
            closing=tf1.identity(read_step),
            rounds=rounds,
            mean_divisor=divisor,
        )

    def _norm(self, gradients: Gradients, divisor: Tensor) -> Tensor:
        with tf1.device(worker_device(self.index)):
            norm = tf1.cast(global_norm(list(gradients.values())), tf1.float64)
            return norm if divisor is None else norm * divisor

    def _untrained(self, trained: set[str]) -> list[str]:
        return [spec.name for spec in self.plan.trained if self.plan.pieces_of(spec.name)[0][0].name not in trained]


def _row_flags(pulled: PulledModel, store: BucketStore) -> tuple[RowFlags, ...]:
    """As in TrainGraph."""
    name, height = store.bucket.name, store.bucket.master_shape[0]
    rows, id_rows = RowFlags(store, f"{name}/rows", height), pulled.id_rows.get(name)
    return (rows, RowFlags(store, f"{name}/sets", height // WAYS, id_rows.clock)) if id_rows else (rows,)


def _noted(
    pulled: PulledModel, store: BucketStore, optimizer: BucketOptimizer, update: Update, flags: tuple[RowFlags, ...]
) -> Update:
    """The update, which gives rows to ids where they are looked up by ids, and notes what it changes where that is."""
    name = store.bucket.name
    if flags:
        update = flags[0].noting(update)
    if id_rows := pulled.id_rows.get(name):
        update = of_ids(id_rows, optimizer.fresh_row(store.master), update)
        update = flags[1].noting(update, id_rows.sets_of) if flags else update
    return pulled.logs[name].noting(update, optimizer.is_by_entry) if name in pulled.logs else update


def _dense_updates(trained: list[TrainedBucket]) -> dict[str, int]:
    sparse = [bucket for bucket in trained if bucket.gradient.indices is not None]
    passing = [bucket for bucket in sparse if bucket.optimizer.passes_over_tables]
    return {bucket.name: bucket.optimizer.bytes_of_all(bucket.store.master) for bucket in passing}


def _unmoved(pulled: PulledModel, step: dict[str, Any]) -> list[str]:
    changed = {**pulled.worker_copies.changed, **pulled.aggregated.changed}
    if not changed:
        return []
    run = {op.name for op in ancestors(tf1.nest.flatten(step))}
    return [name for name, changing in changed.items() if changing and not changing & run]
