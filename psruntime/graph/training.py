"""The training graph: pull, the user's model, push.  Built once; sessions on it come and go with the views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.core.plan import Plan
from psruntime.graph.devices import ps_device, worker_device
from psruntime.graph.gradients import Apply, BucketGradient, applying, bucket_gradients, clipped
from psruntime.graph.guard import PUSH_ID_SIZE, Push, at_hand, guarded_update
from psruntime.graph.inputs import InputStream
from psruntime.graph.optimizers import BucketOptimizer, Rule, learning_rates_at, rules_of
from psruntime.graph.pulled import PulledModel, build_pulled_model
from psruntime.graph.reach import ancestors
from psruntime.graph.round_graph import RoundGraph, Trained, build_rounds
from psruntime.graph.seeds import WorkerGraph
from psruntime.graph.store import BucketStore, PsControl
from psruntime.model import TRAIN, Model


@dataclass(frozen=True)
class TrainGraph:
    """Handles into the graph.

    rules: the model's optimizers and learning rates.  push_ids: int64 [4] placeholder per ps (worker,
    incarnation, sequence number, origin).  learning_rates: float32 [rules] placeholder per ps.
    step: what a training step fetches, {"loss": float [], "global_step": int64 [], "updates": operations} and in
    async and bounded mode {"outcomes": one int64 [buckets, 2] per ps}.  In sync mode a step keeps its gradient for
    `rounds`, and its {"examples": float64 []} are what it weighs, 0 if the loss is not finite.
    optimizers: bucket name -> its optimizer, of those that are trained.
    untrained: names of the trainable variables that the loss does not depend on.
    unmoved: names of the variables that the model has updates for, none of which a step runs.
    """

    graph: Any
    plan: Plan
    model: PulledModel
    rules: list[Rule]
    controls: list[PsControl]
    push_ids: list[Any]
    learning_rates: list[Any]
    step: dict[str, Any]
    rounds: RoundGraph | None
    optimizers: dict[str, BucketOptimizer]
    untrained: list[str]
    unmoved: list[str]

    @property
    def global_step(self) -> BucketStore:
        return self.model.global_step

    def learning_rates_at(self, global_step: int) -> dict[Any, list[float]]:
        """What to feed for the update that follows this global step."""
        return dict.fromkeys(self.learning_rates, learning_rates_at(self.rules, global_step))

    def values_of(self, store: BucketStore) -> list[Any]:
        """The variables of a bucket, but for its books: its master, and what its optimizer keeps for it."""
        optimizer = self.optimizers.get(store.bucket.name)
        return [store.master, *(optimizer.variables if optimizer else [])]

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
        pulled = build_pulled_model(model, inputs, TRAIN, plan, index, job.max_workers)
        rules = rules_of(pulled.spec, f"model_fn of {model.name}")
        finite = _finite(pulled, plan.num_ps, job.mode, index)
        pushes, push_ids, learning_rates = _push_feeds(finite, len(rules))
        gradients = bucket_gradients(pulled, plan, index)
        optimizers = {
            bucket.name: BucketOptimizer(rules, bucket, learning_rates[bucket.ps])
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
            step["examples"] = _examples(pulled, index)
            limits = (pulled.spec.clip_norm, pulled.spec.clip_value)
            rounds = build_rounds(
                trained, pulled.global_step, controls, pushes, learning_rates, index, step["examples"], *limits
            )
            step["kept"] = rounds.keep
            step["global_step"] = pulled.global_step.master.read_value()[0]
        else:
            step["outcomes"], step["global_step"] = _push(trained, controls, pushes, learning_rates, pulled, index)
        untrained = [s.name for s in plan.trained if plan.of(s.name)[0][0].name not in gradients]
        return TrainGraph(
            graph, plan, pulled, rules, controls, push_ids, learning_rates, step, rounds, optimizers,
            untrained, _unmoved(pulled, step),
        )  # fmt: skip


def _unmoved(pulled: PulledModel, step: dict[str, Any]) -> list[str]:
    if not pulled.copies.changed:
        return []
    run = {op.name for op in ancestors(tf1.nest.flatten(step))}
    return [name for name, changing in pulled.copies.changed.items() if not changing & run]


def _finite(pulled: PulledModel, num_ps: int, mode: str, index: int) -> list[Any]:
    """Per ps whether the loss is finite, bool [] there: as computed in this run, or fed in mode sync."""
    with tf1.device(worker_device(index)):
        computed = tf1.is_finite(pulled.spec.loss)
    finite = []
    for ps in range(num_ps):
        with tf1.device(ps_device(ps)):
            fed = mode == "sync"
            finite.append(tf1.placeholder(tf1.bool, [], name=f"finite_{ps}") if fed else tf1.identity(computed))
    return finite


def _examples(pulled: PulledModel, index: int) -> Any:
    """What the batch weighs in a round, float64 []; 0 if its loss is not finite."""
    with tf1.device(worker_device(index)):
        weight = tf1.cast(pulled.examples, tf1.float64)
        return tf1.where(tf1.is_finite(pulled.spec.loss), weight, tf1.zeros_like(weight))


def _push(
    trained: list[Trained],
    controls: list[PsControl],
    pushes: list[Push],
    learning_rates: list[Any],
    pulled: PulledModel,
    index: int,
) -> tuple[list[Any], Any]:
    """The push of the async and the bounded mode, clipped by itself; (outcomes per ps, global step after it)."""
    with tf1.device(worker_device(index)):
        gradients = clipped(
            {t.store.bucket.name: t.gradient for t in trained}, pulled.spec.clip_norm, pulled.spec.clip_value
        )
    outcomes: list[list[Any]] = [[] for _ in controls]
    for store, _, apply in trained:
        name, ps = store.bucket.name, store.bucket.ps
        gradient = at_hand(store, gradients[name])
        arrived = [*gradient.tensors, learning_rates[ps]]
        outcome, _ = guarded_update(
            store, controls[ps], pushes[ps], pulled.versions[name], arrived, _of_live(apply, gradient)
        )
        outcomes[ps].append(outcome)
    outcome, count = _count_step(pulled.global_step, controls[0], pushes[0])
    outcomes[0].append(outcome)
    return _stack(outcomes), count


def _of_live(apply: Apply, gradient: BucketGradient) -> Callable[[Callable[[Any], Any]], Any]:
    return lambda live: apply(gradient.map(live))


def _push_feeds(finite: list[Any], num_rules: int) -> tuple[list[Push], list[Any], list[Any]]:
    """Per ps what comes with every push.  Placeholders on the ps itself: no edge leads from ps to ps."""
    pushes, push_ids, learning_rates = [], [], []
    for ps, is_finite in enumerate(finite):
        with tf1.device(ps_device(ps)):
            push_id = tf1.placeholder(tf1.int64, [PUSH_ID_SIZE], name=f"push_id_{ps}")
            push_ids.append(push_id)
            learning_rates.append(tf1.placeholder(tf1.float32, [num_rules], name=f"learning_rates_{ps}"))
            pushes.append(Push.of(push_id, is_finite))
    return pushes, push_ids, learning_rates


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


def _stack(outcomes: list[list[Any]]) -> list[Any]:
    """One tensor per ps, so that a step fetches one."""
    stacked = []
    for ps, of_ps in enumerate(outcomes):
        if of_ps:
            with tf1.device(ps_device(ps)):
                stacked.append(tf1.stack(of_ps))
    return stacked
