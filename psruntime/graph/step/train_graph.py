"""The training graph: pull, the user's model, push.  Built once; sessions on it come and go with the views."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.core.plan.plan import Plan
from psruntime.graph.base.ancestors import ancestors
from psruntime.graph.base.devices import ps_device, worker_device
from psruntime.graph.base.seeds import WorkerGraph
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.backward import bucket_gradients
from psruntime.graph.model.local_steps import with_local_steps
from psruntime.graph.model.pulled_model import PulledModel, build_pulled_model
from psruntime.graph.step.error_feedback import packed_gradient
from psruntime.graph.step.mean_share import make_shares, unit_of
from psruntime.graph.step.round_graph import RoundGraph, Trained, build_rounds
from psruntime.graph.store.apply import Apply, applying
from psruntime.graph.store.bucket_store import BucketStore, PsControl
from psruntime.graph.store.gradient import BucketGradient, clipped
from psruntime.graph.store.guard import Push, at_hand, guarded_update
from psruntime.graph.store.optimizers import BucketOptimizer, rules_of
from psruntime.graph.store.step_messages import Header, Outcomes
from psruntime.graph.store.wire import Wire
from psruntime.model import TRAIN, Model


@dataclass(frozen=True)
class TrainGraph:
    """Handles into the graph.

    header: what to feed besides the batch.
    shares: float64 [], to be fed to a step of mode sync: the number of shares into which it divides its gradient;
        None: it does not.
    step: what a training step fetches, {"loss": float [], "global_step": int64 [], "updates": operations,
    "outcomes": one int64 [buckets, 2] per ps}.  In sync mode a step contributes its gradient to the round, and keeps
    it for `rounds`; its {"examples": float64 []} are what it weighs, 0 if the loss is not finite.
    optimizers: bucket name -> its optimizer, of those that are trained.
    untrained: names of the trainable variables that the loss does not depend on.
    unmoved: names of the variables that the model has updates for, none of which a step runs.
    """

    graph: Any
    plan: Plan
    model: PulledModel
    header: Header
    shares: Any
    controls: list[PsControl]
    step: dict[str, Any]
    rounds: RoundGraph | None
    optimizers: dict[str, BucketOptimizer]
    untrained: list[str]
    unmoved: list[str]

    @property
    def global_step(self) -> BucketStore:
        return self.model.global_step

    def values_of(self, store: BucketStore) -> list[Any]:
        """The variables of a bucket, but for its books: its master, and what its optimizer keeps for it."""
        optimizer = self.optimizers.get(store.bucket.name)
        return [store.master, *(optimizer.variables if optimizer else [])]

    def is_step(self, run_context: Any) -> bool:
        """Whether this run of a session is a training step; any other pushes nothing and counts for nothing."""
        return run_context.original_args.fetches is self.step

    def step_reader(self) -> Any:
        """A new tensor that reads the global step on ps 0, int64 []."""
        with self.graph.as_default():
            return self.global_step.master.read_value()[0]

    def stores_on(self, ps: int) -> list[BucketStore]:
        """All buckets of a ps, the global step included."""
        stores = [*self.model.stores.values(), self.global_step]
        return [store for store in stores if store.bucket.ps == ps]


def build_training(model: Model, inputs: InputStream, plan: Plan, job: JobConfig, index: int) -> TrainGraph:
    """Builds the graph of worker `index`.

    Raises:
        UsageError: the model or its optimizer cannot be used; the message says why.
    """
    with WorkerGraph(index).as_default() as graph:
        controls = [PsControl(ps, job.max_workers) for ps in range(plan.num_ps)]
        wire = Wire(tf1.as_dtype(job.wire), job.wire_error_feedback == "on")
        begins_last = job.mode == "sync"  # a model that fails while a round is closed would tear it
        one = build_pulled_model(model, inputs, TRAIN, plan, index, job.max_workers, wire, begins_last)
        rules = rules_of(one.spec, f"model_fn of {model.name}")
        shares = make_shares(index) if job.mode == "sync" else None
        pulled, gradients = with_local_steps(one, bucket_gradients(one, plan, index, shares), inputs, index)
        finite = _is_finite(pulled, index, gradients if job.on_data_error == "skip" else {})
        if job.mode == "sync":
            examples, unit = _weight_and_unit(pulled, shares, index)
            # A step of mode sync applies nothing, so it tells no learning rate; the close of its round does.
            header = Header([], index, plan.num_ps, finite, unit)
            applying_header = Header(rules, index, plan.num_ps)
        else:
            applying_header = header = Header(rules, index, plan.num_ps, finite)
        optimizers = {
            bucket.name: BucketOptimizer(rules, bucket, applying_header.on[bucket.ps].learning_rates)
            for bucket in plan.buckets
            if bucket.name in gradients
        }
        trained = []
        for name, optimizer in optimizers.items():
            store = pulled.stores[name]
            apply = applying(optimizer, store, pulled.constraints.get(store.bucket.variable), pulled.step_view)
            trained.append(Trained(store, gradients[name], apply))
        step: dict[str, Any] = {"loss": pulled.spec.loss, "updates": pulled.updates}
        rounds = None
        if job.mode == "sync":
            limits = (pulled.spec.clip_norm, pulled.spec.clip_value)
            headers = (header, applying_header)
            rounds = build_rounds(trained, pulled.global_step, controls, headers, index, examples, wire, *limits)
            step.update(examples=examples, **rounds.step)
            pulled.begin_after(rounds.after_close)
        else:
            step["outcomes"], step["global_step"] = _push(trained, controls, header, pulled, wire, finite, index)
        untrained = [s.name for s in plan.trained if plan.of(s.name)[0][0].name not in gradients]
        unmoved = _unmoved(pulled, step)
        return TrainGraph(graph, plan, pulled, header, shares, controls, step, rounds, optimizers, untrained, unmoved)


def _unmoved(pulled: PulledModel, step: dict[str, Any]) -> list[str]:
    if not pulled.copies.changed:
        return []
    run = {op.name for op in ancestors(tf1.nest.flatten(step))}
    return [name for name, changing in pulled.copies.changed.items() if not changing & run]


def _is_finite(pulled: PulledModel, index: int, after: Mapping[str, BucketGradient]) -> Any:
    """Whether the loss of this run is, bool [] on the worker.

    after: gradients without all of which there is no answer.  No ps takes a push without it, so a step that
    fails in the model has pushed nothing, and its batch can be left out.
    """
    gradients = [tensor for gradient in after.values() for tensor in gradient.tensors]
    with tf1.device(worker_device(index)), tf1.control_dependencies(gradients):
        return tf1.is_finite(pulled.spec.loss)


def _weight_and_unit(pulled: PulledModel, shares: Any, index: int) -> tuple[Any, Any]:
    """(what the batch weighs in a round, float64 [], 0 if its loss is not finite; the unit of its gradient)."""
    with tf1.device(worker_device(index)):
        weight = tf1.cast(pulled.examples, tf1.float64)
        examples = tf1.where(tf1.is_finite(pulled.spec.loss), weight, tf1.zeros_like(weight))
        return examples, unit_of(examples, shares)


def _push(
    trained: list[Trained],
    controls: list[PsControl],
    header: Header,
    pulled: PulledModel,
    wire: Wire,
    finite: Any,
    index: int,
) -> tuple[list[Any], Any]:
    """The push of the async and the bounded mode, clipped by itself; (outcomes per ps, global step after it)."""
    with tf1.device(worker_device(index)):
        gradients = clipped(
            {t.store.bucket.name: t.gradient for t in trained}, pulled.spec.clip_norm, pulled.spec.clip_value
        )
    outcomes = Outcomes(len(controls))
    for store, _, apply in trained:
        name, ps = store.bucket.name, store.bucket.ps
        sent = packed_gradient(wire, name, gradients[name], finite, index)
        gradient = at_hand(store, sent, store.master.dtype.base_dtype)
        arrived = [*gradient.tensors, *header.on[ps].learning_rates]
        outcome, _ = guarded_update(
            store, controls[ps], header.on[ps].push, pulled.versions[name], arrived, _of_live(apply, gradient)
        )
        outcomes.add(ps, outcome)
    outcome, count = _count_step(pulled.global_step, controls[0], header.on[0].push)
    outcomes.add(0, outcome)
    return outcomes.bring(count, index)


def _of_live(apply: Apply, gradient: BucketGradient) -> Callable[[Callable[[Any], Any]], Any]:
    return lambda live: apply(gradient.map(live))


def _count_step(store: BucketStore, control: PsControl, push: Push) -> tuple[Any, Any]:
    """Counts the update in the global step, by the rule of every bucket; (outcome, global step after it)."""
    with tf1.device(ps_device(store.bucket.ps)):
        one = tf1.ones([1], tf1.int64)
        version, _ = store.pull()
        outcome, counted = guarded_update(
            store, control, push, version, [], lambda live: store.master.assign_add(live(one), read_value=False)
        )
        with tf1.control_dependencies([counted]):
            return outcome, store.master.read_value()[0]
