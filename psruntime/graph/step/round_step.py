"""The step of mode sync: close the round before, pull, compute, keep the gradient, and contribute it to the round.

A worker's gradient goes into variables of its own first.  They outlive the session, so it can be
pushed again when an attempt became void or a session was lost, without computing it a second time.

A step closes the round before on each section before it reads that: the first of the members to come does, the others
find it done.  So a round costs no run and no message of its own.

With backup workers a step only keeps its gradient, since it may come too late; a run of its own contributes it then.

For a local round a worker keeps a change that was computed elsewhere; such a round is closed by a run of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf1

from psruntime.config.schedule import LOCAL
from psruntime.core.accounting.accounts import PENDING
from psruntime.core.rounds.contribution import BucketOutcome
from psruntime.errors import UsageError
from psruntime.graph.base.server import ps_device, worker_device
from psruntime.graph.base.types import Op, Tensor
from psruntime.graph.buckets.apply import Update, counting_update, setting_update
from psruntime.graph.buckets.bucket_store import GLOBAL_STEP, BucketSection, BucketStore, by_section
from psruntime.graph.buckets.gradient import BucketGradient, GradientStore, ascending
from psruntime.graph.model.pulled_model import PulledModel
from psruntime.graph.push.aggregation import Aggregation
from psruntime.graph.push.pushed_gradient import gradient_scale, make_divisor
from psruntime.graph.push.round_sum import APPLIED_ATTEMPT, BucketSum, SectionRounds, close, contribute
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
    graph, of_rounds = rounds.built()
    pulled.pull_after(graph.after_close)  # the one back edge: the pull, which was built first, waits for the close
    step = {"examples": examples, **of_rounds}
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


Close = tuple[Update, BucketGradient | None]  # as `close` takes it of a bucket


class _BucketRound(NamedTuple):
    """The round of one bucket, while it is built.

    sent: the gradient of a step.  kept: the one that the worker has kept, as it is read again.
    close, close_local: by what a round, a local round, is applied; the latter None where the job has none.
    """

    sum: BucketSum
    sent: BucketGradient
    kept: BucketGradient
    close: Close
    close_local: Close | None = None
    aggregation: Aggregation | None = None

    @property
    def store(self) -> BucketStore:
        return self.sum.store

    @property
    def is_trained(self) -> bool:
        return self.aggregation is None and self.store.bucket is not GLOBAL_STEP


class _ClosedSection(NamedTuple):
    """The runs of a round on one section.

    state, closed: as of `close`; local_state: the former of a local round.  outcome, again: of a step's contribution,
    and of that of what was kept, int64 [3].
    """

    ps: int
    state: Tensor
    closed: Op
    outcome: Tensor
    again: Tensor
    local_state: Tensor | None


class _Rounds:
    """The rounds of all buckets, while they are built.  The limits are those of the joint gradient, see ModelSpec."""

    def __init__(
        self, setup: StepSetup, pulled: PulledModel, step_request: PushRequest, close_request: PushRequest
    ) -> None:
        self._setup = setup
        self._pulled = pulled
        self._step_request = step_request
        self._close_request = close_request
        self._sections: dict[str, SectionRounds] = {}
        self._buckets: list[_BucketRound] = []
        self._keep: list[Op] = []
        self._local = _LocalRounds(setup) if setup.has_local_rounds else None

    def add(self, bucket: TrainedBucket, examples: Tensor) -> None:
        """A bucket that is trained.  examples: what the batch weighs, float64 []."""
        sent = self._setup.sent(bucket, examples > 0)
        own_sum, closing = self._sum(bucket.store, sent), self._close_request.on[bucket.ps]
        clip_value, is_dynamic = self._pulled.spec.clip_value, bucket.name in self._pulled.id_rows
        update = _joint_update(own_sum, closing, clip_value, bucket.update, is_dynamic)
        kept = self._kept(bucket.store, sent)
        local = None
        if self._local:
            subtracted = _joint_update(own_sum, closing, None, bucket.subtract)
            local = self._local.of_trained(bucket, kept, subtracted)
        self._buckets.append(_BucketRound(own_sum, sent, self._again(kept), (update, None), local))

    def add_aggregated(self, bucket: AggregatedBucket) -> None:
        """A bucket of a variable with an aggregation."""
        store, pushed, aggregation = bucket
        own_sum, kept = self._sum(store, pushed), self._kept(store, pushed)
        local = None
        if self._local:
            local = self._local.of_change(store, kept, aggregation.local_update(own_sum))
        update = aggregation.round_update(own_sum), None
        self._buckets.append(_BucketRound(own_sum, pushed, self._again(kept), update, local, aggregation))

    def count(self) -> None:
        """The global step, which goes up by one a round, by the rule of every bucket."""
        store = self._pulled.global_step
        with tf1.device(ps_device(store.bucket.ps)):
            one = BucketGradient(tf1.ones([1], tf1.int64))
        local = self._local.of_step(store) if self._local else None
        self._buckets.append(_BucketRound(self._sum(store, one), one, one, (counting_update(store), one), local))

    def _sum(self, store: BucketStore, gradient: BucketGradient) -> BucketSum:
        name = store.section.name
        if name not in self._sections:
            self._sections[name] = SectionRounds(store.section)
        return self._sections[name].of(store, gradient.indices is not None)

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

    def built(self) -> tuple[RoundGraph, dict[str, Any]]:
        """(the runs of a round; what a step fetches of it)."""
        sections = {section.name: self._section(section, buckets) for section, buckets in by_section(self._buckets)}
        outcomes, again, squares = Outcomes(self._setup.plan.num_ps), self._of_each_ps(), self._of_each_ps()
        for bucket in self._buckets:  # in the order of the plan, in which a replay finds the outcomes
            ps, section = bucket.store.bucket.ps, sections[bucket.store.section.name]
            outcomes.add(ps, section.outcome)
            again[ps].append(section.again)
            if bucket.is_trained and self._pulled.spec.clip_norm is not None:
                with tf1.device(ps_device(ps)):
                    squares[ps].append(bucket.sum.square())
        step = self._pulled.global_step
        with tf1.control_dependencies([sections[step.section.name].closed]):
            count = step.master.read_value()[0]
        brought, global_step = outcomes.bring(count, self._setup.index)
        states, local_states = self._of_each_ps(), self._of_each_ps()
        for section in sections.values():
            states[section.ps].append(section.state)
            local_states[section.ps] += [] if section.local_state is None else [section.local_state]
        graph = RoundGraph(
            sections=[*self._sections.values()],
            request=self._close_request,
            contribute=_each(tf1.stack, again),
            squares=_each(tf1.add_n, squares),
            close=_each(tf1.stack, states),
            after_close={b.store.bucket.name: sections[b.store.section.name].closed for b in self._buckets},
            local=self._local.graph(_each(tf1.stack, local_states)) if self._local else None,
        )
        return graph, {"kept": self._keep, "outcomes": brought, "global_step": global_step}

    def _section(self, section: BucketSection, buckets: list[_BucketRound]) -> _ClosedSection:
        rounds, control = self._sections[section.name], self._setup.controls[section.ps]
        closing = self._close_request.on[section.ps]
        state, closed = close(rounds, control, closing, [bucket.close for bucket in buckets])
        outcome = self._outcome(rounds, buckets, state)
        again = self._contribute(rounds, closing, buckets, [bucket.kept for bucket in buckets])
        local = [bucket.close_local for bucket in buckets if bucket.close_local]
        local_state = close(rounds, control, closing, local)[0] if local else None
        return _ClosedSection(section.ps, state, closed, outcome, again, local_state)

    def _of_each_ps(self) -> list[list[Tensor]]:
        return [[] for _ in range(self._setup.plan.num_ps)]

    def _outcome(self, rounds: SectionRounds, buckets: list[_BucketRound], closed: Tensor) -> Tensor:
        """The outcome of a step on a section, int64 [3]; closed: the round state after the close."""
        ps = rounds.section.ps
        if self._setup.job.backup_workers:
            numbers = self._setup.controls[ps].numbers
            with tf1.device(ps_device(ps)):
                return tf1.stack(BucketOutcome(numbers(PENDING), closed[APPLIED_ATTEMPT], numbers(0)))
        return self._contribute(rounds, self._step_request.on[ps], buckets, [bucket.sent for bucket in buckets], closed)

    def _contribute(
        self,
        rounds: SectionRounds,
        request: ReceivedPush,
        buckets: list[_BucketRound],
        gradients: list[BucketGradient],
        closed: Tensor = None,
    ) -> Tensor:
        """As `contribute`; a bucket with an aggregation is alone in its section."""
        control, aggregation = self._setup.controls[rounds.section.ps], buckets[0].aggregation
        if aggregation is None:
            return contribute(rounds, control, request, gradients, closed)
        request = aggregation.contribution(request)
        return contribute(rounds, control, request, gradients, closed, replaces=aggregation.is_first_only)


class _LocalRounds:
    """The runs of local rounds, while they are built."""

    def __init__(self, setup: StepSetup) -> None:
        self._index = setup.index
        self._change: dict[str, BucketGradient] = {}
        self._keep: dict[str, Op] = {}
        with tf1.device(ps_device(0)):
            self._end = tf1.placeholder(tf1.int64, [1], name="local_end")

    def of_trained(self, bucket: TrainedBucket, kept: GradientStore, update: Update) -> Close:
        """Of a bucket that is trained; kept: where its change is kept.  update: by the sum of the changes.

        Raises:
            UsageError: its optimizer would forget the mean.
        """
        if bucket.optimizer.is_of_sums:
            raise UsageError(
                f"the schedule has stage '{LOCAL}', and optimizer {bucket.optimizer.kind} makes variable "
                f"{bucket.store.bucket.variable} anew of what it keeps beside it, which is not averaged; leave out "
                "that stage, or take another optimizer"
            )
        return self.of_change(bucket.store, kept, update)

    def of_change(self, store: BucketStore, kept: GradientStore, update: Update) -> Close:
        """Of a bucket whose change is kept there.  update: by the sum of the changes."""
        name = store.bucket.name
        with tf1.device(worker_device(self._index)):
            change = BucketGradient(*[tf1.placeholder(v.dtype.base_dtype, v.shape) for v in kept.variables])
            self._keep[name] = kept.write(change)
        self._change[name] = change
        return update, None

    def of_step(self, store: BucketStore) -> Close:
        """The global step, which is that of the end afterwards."""
        return setting_update(store), BucketGradient(self._end)

    def graph(self, close: list[Tensor]) -> LocalRoundGraph:
        return LocalRoundGraph(self._change, self._keep, self._end, close)


def _joint_update(
    own_sum: BucketSum, closing: ReceivedPush, clip_value: float | None, update: Update, is_dynamic: bool = False
) -> Update:
    """The update of a bucket from the sum of a round: first the joint gradient is made of it, in the master's dtype.

    is_dynamic: of a dynamic table, where ids get rows in their order, which must not be that in which the workers came.
    """

    def from_sum(total: BucketGradient) -> Op:
        joint = own_sum.joint(total, closing.factor)
        joint = ascending(joint) if is_dynamic else joint
        values = joint.values
        if clip_value is not None:
            values = tf1.clip_by_value(values, -clip_value, clip_value)
        return update(joint.with_values(tf1.cast(values, own_sum.store.master.dtype.base_dtype)))

    return from_sum


def _each(build: Callable[[list[Tensor]], Tensor], per_ps: list[list[Tensor]]) -> list[Tensor]:
    """One tensor on each ps that has any."""
    built = []
    for ps, tensors in enumerate(per_ps):
        if tensors:
            with tf1.device(ps_device(ps)):
                built.append(build(tensors))
    return built
