"""The step of mode sync: close the round before, pull, compute, keep the gradient, and contribute it to the round.

A worker's gradient goes into variables of its own first.  They outlive the session, so it can be
pushed again when an attempt became void or a session was lost, without computing it a second time.

A step closes the round before on each bucket before it reads that: the first of the members to come does, the others
find it done.  So a round costs no run and no message of its own.

With backup workers a step only keeps its gradient, since it may come too late; a run of its own contributes it then.

For a local round a worker keeps a change that was computed elsewhere; such a round is closed by a run of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.config.schedule import LOCAL
from psruntime.core.accounting.accounts import PENDING
from psruntime.core.rounds.contribution import BucketOutcome
from psruntime.errors import UsageError
from psruntime.graph.base.server import ps_device, worker_device
from psruntime.graph.base.types import Op, Tensor
from psruntime.graph.buckets.apply import Update, counting_update, setting_update
from psruntime.graph.buckets.bucket_store import BucketStore
from psruntime.graph.buckets.gradient import BucketGradient, GradientStore, ascending
from psruntime.graph.model.pulled_model import PulledModel
from psruntime.graph.push.aggregation import Aggregation
from psruntime.graph.push.pushed_gradient import gradient_scale, make_divisor
from psruntime.graph.push.round_sum import APPLIED_ATTEMPT, RoundStore, close, contribute
from psruntime.graph.push.step_messages import Outcomes, PushRequest, ReceivedPush
from psruntime.graph.step.setup import AggregatedBucket, StepSetup, TrainedBucket
from psruntime.graph.step.train_graph import LocalRoundGraph, RoundGraph, TrainGraph


def build_round_step(setup: StepSetup) -> TrainGraph:
    """Builds the step, and the runs of a round that need no batch.

    Two headers: a step's own, for its contribution, and that of the close, which every run is fed.  A step applies
    nothing itself, so only the header of the close has learning rates.

    Raises:
        UsageError: the job has local stages, and the model a dynamic table, or an optimizer that they are not for.
    """
    if setup.has_local_rounds:
        _require_no_dynamic_table(setup)
    one = setup.pulled_model(begins_last=True)  # a model that fails while a round is closed would tear it
    divisor = None if setup.job.top_k else make_divisor(setup.index)  # what is kept would be in another unit
    pulled, gradients = setup.gradients(one, divisor)
    aggregated = setup.aggregated(pulled)
    finite = setup.is_finite(pulled, [*gradients.values(), *(bucket.pushed for bucket in aggregated)])
    examples, scale = _weight_and_scale(setup, pulled, divisor, finite)
    step_request = PushRequest([], setup.index, setup.controls, finite, scale)
    close_request = PushRequest(setup.rules(pulled), setup.index, setup.controls)
    trained = setup.trained_buckets(pulled, gradients, close_request)
    rounds = _Rounds(setup, pulled, step_request, close_request)
    for bucket in trained:
        rounds.add(bucket, examples)
    for of_model in aggregated:
        rounds.add_aggregated(of_model)
    rounds.count()
    graph = rounds.graph()
    pulled.pull_after(graph.after_close)  # the one back edge: the pull, which was built first, waits for the close
    step = {"examples": examples, **rounds.step()}
    return setup.handles(pulled, step_request, trained, step, gradients, finite, graph, divisor)


def _require_no_dynamic_table(setup: StepSetup) -> None:
    for group in setup.plan.groups:
        if group.dynamic:
            raise UsageError(
                f"the schedule has stage '{LOCAL}', and the model dynamic table {group.tables[0].name}, in which each "
                "worker would give rows to other ids; leave out that stage"
            )


def _weight_and_scale(setup: StepSetup, pulled: PulledModel, divisor: Tensor, finite: Tensor) -> tuple[Tensor, Tensor]:
    """(what the batch weighs in a round, float64 [], 0 unless it is finite; the scale of its gradient)."""
    examples = setup.weight(pulled, finite)
    with tf1.device(worker_device(setup.index)):
        return examples, gradient_scale(examples, divisor)


class _Rounds:
    """The rounds of all buckets, while they are built.  The limits are those of the joint gradient, see ModelSpec."""

    def __init__(
        self, setup: StepSetup, pulled: PulledModel, step_request: PushRequest, close_request: PushRequest
    ) -> None:
        self._setup = setup
        self._pulled = pulled
        self._step_request = step_request
        self._close_request = close_request
        every_ps = range(setup.plan.num_ps)
        self._stores: list[list[RoundStore]] = [[] for _ in every_ps]  # per ps, like the next three
        self._contribute: list[list[Tensor]] = [[] for _ in every_ps]
        self._squares: list[list[Tensor]] = [[] for _ in every_ps]
        self._close: list[list[Tensor]] = [[] for _ in every_ps]
        self._keep: list[Op] = []
        self._after_close: dict[str, Tensor] = {}
        self._outcomes = Outcomes(setup.plan.num_ps)
        self._local = _LocalRounds(setup, close_request) if setup.has_local_rounds else None

    def add(self, bucket: TrainedBucket, examples: Tensor) -> None:
        """A bucket that is trained.  examples: what the batch weighs, float64 []."""
        setup, store, ps = self._setup, bucket.store, bucket.ps
        sent = setup.sent(bucket, examples > 0)
        round_store = RoundStore(store, sent.indices is not None)
        kept = self._kept(store, sent)
        closing = self._close_request.on[ps]
        is_dynamic = bucket.name in self._pulled.id_rows
        update = _joint_update(round_store, closing, self._pulled.spec.clip_value, bucket.update, is_dynamic)
        state, self._after_close[bucket.name] = close(round_store, setup.controls[ps], closing, update)
        self._outcomes.add(ps, self._outcome(round_store, ps, sent, state))
        self._stores[ps].append(round_store)
        self._contribute[ps].append(contribute(round_store, setup.controls[ps], closing, self._again(kept)))
        if self._pulled.spec.clip_norm is not None:
            with tf1.device(ps_device(ps)):
                self._squares[ps].append(round_store.square())
        self._close[ps].append(state)
        if self._local:
            self._local.add(bucket, round_store, kept)

    def add_aggregated(self, bucket: AggregatedBucket) -> None:
        """A bucket of a variable with an aggregation."""
        (store, pushed, aggregation), control = bucket, self._setup.controls[bucket.store.bucket.ps]
        ps, name = store.bucket.ps, store.bucket.name
        round_store, kept, closing = (
            RoundStore(store, is_sparse=False),
            self._kept(store, pushed),
            self._close_request.on[ps],
        )
        state, self._after_close[name] = close(round_store, control, closing, aggregation.round_update(round_store))
        self._outcomes.add(ps, self._outcome(round_store, ps, pushed, state, aggregation))
        self._stores[ps].append(round_store)
        request, replaces = aggregation.contribution(closing), aggregation.is_first_only
        self._contribute[ps].append(contribute(round_store, control, request, self._again(kept), replaces=replaces))
        self._close[ps].append(state)
        if self._local:
            self._local.add_change(round_store, kept, aggregation.local_update(round_store))

    def _kept(self, store: BucketStore, sent: BucketGradient) -> GradientStore:
        """Where the worker keeps what a step sends of a bucket, which it does in each."""
        with tf1.device(worker_device(self._setup.index)):
            name, is_sparse = f"kept/{store.bucket.name}", sent.indices is not None
            kept = GradientStore(name, store.master, sent.values.dtype, is_sparse)
            self._keep.append(kept.write(sent))
            return kept

    def _again(self, kept: GradientStore) -> BucketGradient:
        with tf1.device(worker_device(self._setup.index)):
            return kept.read()

    def count(self) -> None:
        """The global step, which goes up by one a round, by the rule of every bucket."""
        store, control = self._pulled.global_step, self._setup.controls[0]
        round_store = RoundStore(store, is_sparse=False)
        with tf1.device(ps_device(store.bucket.ps)):
            one = BucketGradient(tf1.ones([1], tf1.int64))
        closing = self._close_request.on[0]
        self._stores[0].append(round_store)
        self._contribute[0].append(contribute(round_store, control, closing, one))
        state, self._after_close[store.bucket.name] = close(round_store, control, closing, counting_update(store), one)
        self._close[0].append(state)
        if self._local:
            self._local.count(round_store)
        self._outcomes.add(0, self._outcome(round_store, 0, one, state))

    def _outcome(
        self,
        round_store: RoundStore,
        ps: int,
        gradient: BucketGradient,
        closed: Tensor,
        aggregation: Aggregation | None = None,
    ) -> Tensor:
        """The outcome of a step on a bucket, int64 [3] as of `contribute`; closed: the round state after the close."""
        control = self._setup.controls[ps]
        if self._setup.job.backup_workers:
            with tf1.device(ps_device(ps)):
                return tf1.stack(BucketOutcome(control.numbers(PENDING), closed[APPLIED_ATTEMPT], control.numbers(0)))
        request = self._step_request.on[ps]
        if aggregation is None:
            return contribute(round_store, control, request, gradient, closed)
        return contribute(
            round_store,
            control,
            aggregation.contribution(request),
            gradient,
            closed,
            replaces=aggregation.is_first_only,
        )

    def step(self) -> dict[str, Any]:
        """What a step fetches of it."""
        store = self._pulled.global_step
        with tf1.control_dependencies([self._after_close[store.bucket.name]]):
            count = store.master.read_value()[0]
        outcomes, global_step = self._outcomes.bring(count, self._setup.index)
        return {"kept": self._keep, "outcomes": outcomes, "global_step": global_step}

    def graph(self) -> RoundGraph:
        return RoundGraph(
            stores=[round_store for of_ps in self._stores for round_store in of_ps],
            request=self._close_request,
            contribute=_each(tf1.stack, self._contribute),
            squares=_each(tf1.add_n, self._squares),
            close=_each(tf1.stack, self._close),
            after_close=self._after_close,
            local=self._local.graph() if self._local else None,
        )


class _LocalRounds:
    """The runs of local rounds, while they are built."""

    def __init__(self, setup: StepSetup, closing: PushRequest) -> None:
        self._index, self._controls, self._closing = setup.index, setup.controls, closing
        self._change: dict[str, BucketGradient] = {}
        self._keep: dict[str, Op] = {}
        self._close: list[list[Tensor]] = [[] for _ in range(setup.plan.num_ps)]
        with tf1.device(ps_device(0)):
            self._end = tf1.placeholder(tf1.int64, [1], name="local_end")

    def add(self, bucket: TrainedBucket, round_store: RoundStore, kept: GradientStore) -> None:
        """A bucket that is trained; kept: where its change is kept.

        Raises:
            UsageError: its optimizer would forget the mean.
        """
        if bucket.optimizer.is_of_sums:
            raise UsageError(
                f"the schedule has stage '{LOCAL}', and optimizer {bucket.optimizer.kind} makes variable "
                f"{bucket.store.bucket.variable} anew of what it keeps beside it, which is not averaged; leave out "
                "that stage, or take another optimizer"
            )
        self.add_change(
            round_store, kept, _joint_update(round_store, self._closing.on[bucket.ps], None, bucket.subtract)
        )

    def add_change(self, round_store: RoundStore, kept: GradientStore, update: Update) -> None:
        """A bucket whose change is kept there.  update: by the sum of the changes."""
        name, ps = round_store.store.bucket.name, round_store.store.bucket.ps
        with tf1.device(worker_device(self._index)):
            change = BucketGradient(*[tf1.placeholder(v.dtype.base_dtype, v.shape) for v in kept.variables])
            self._keep[name] = kept.write(change)
        self._change[name] = change
        self._close[ps].append(close(round_store, self._controls[ps], self._closing.on[ps], update)[0])

    def count(self, round_store: RoundStore) -> None:
        """The global step, which is that of the end afterwards."""
        update, end = setting_update(round_store.store), BucketGradient(self._end)
        self._close[0].append(close(round_store, self._controls[0], self._closing.on[0], update, end)[0])

    def graph(self) -> LocalRoundGraph:
        return LocalRoundGraph(self._change, self._keep, self._end, _each(tf1.stack, self._close))


def _joint_update(
    round_store: RoundStore, closing: ReceivedPush, clip_value: float | None, update: Update, is_dynamic: bool = False
) -> Update:
    """The update of a bucket from the sum of a round: first the joint gradient is made of it, in the master's dtype.

    is_dynamic: of a dynamic table, where ids get rows in their order, which must not be that in which the workers came.
    """

    def from_sum(total: BucketGradient) -> Op:
        joint = round_store.joint(total, closing.factor)
        joint = ascending(joint) if is_dynamic else joint
        values = joint.values
        if clip_value is not None:
            values = tf1.clip_by_value(values, -clip_value, clip_value)
        return update(joint.with_values(tf1.cast(values, round_store.store.master.dtype.base_dtype)))

    return from_sum


def _each(build: Callable[[list[Tensor]], Tensor], per_ps: list[list[Tensor]]) -> list[Tensor]:
    """One tensor on each ps that has any."""
    built = []
    for ps, tensors in enumerate(per_ps):
        if tensors:
            with tf1.device(ps_device(ps)):
                built.append(build(tensors))
    return built
