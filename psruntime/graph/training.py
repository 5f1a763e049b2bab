"""The training graph: pull, the user's model, push.  Built once; sessions on it come and go with the views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.core.plan import Bucket, Plan
from psruntime.errors import UsageError
from psruntime.graph.devices import ps_device, worker_device
from psruntime.graph.gradients import Apply, BucketGradient, applying, bucket_gradients, clipped
from psruntime.graph.guard import Push, at_hand, guarded_update
from psruntime.graph.inputs import InputStream
from psruntime.graph.pulled import PulledModel, build_pulled_model
from psruntime.graph.round_graph import RoundGraph, Trained, build_rounds
from psruntime.graph.store import GLOBAL_STEP, BucketStore, PsControl
from psruntime.model import TRAIN, Model


@dataclass(frozen=True)
class TrainGraph:
    """Handles into the graph.

    batch: placeholders of one batch.  push_ids: int64 [3] placeholder per ps (worker, incarnation,
    sequence number).  learning_rates: float32 [] placeholder per ps.
    step: what a training step fetches, {"loss": float [], "global_step": int64 []} and in async and bounded mode
    {"outcomes": one int64 [buckets, 2] per ps}.  In sync mode a step keeps its gradient for `rounds`, and its
    {"examples": float64 []} are what it weighs, 0 if the loss is not finite.
    optimizer_variables: bucket name -> the optimizer's own variables for it.
    """

    graph: Any
    plan: Plan
    model: PulledModel
    controls: list[PsControl]
    global_step: BucketStore
    push_ids: list[Any]
    learning_rates: list[Any]
    step: dict[str, Any]
    rounds: RoundGraph | None
    optimizer_variables: dict[str, list[Any]]
    untrained: list[str]  # variables that the loss does not depend on

    def stores_on(self, ps: int) -> list[BucketStore]:
        """All buckets of a ps, the global step included."""
        stores = [*self.model.stores.values(), self.global_step]
        return [store for store in stores if store.bucket.ps == ps]


def build_training(model: Model, inputs: InputStream, plan: Plan, job: JobConfig, index: int) -> TrainGraph:
    """Builds the graph of worker `index`.

    Raises:
        UsageError: the model or its optimizer cannot be used; the message says why.
    """
    with tf1.Graph().as_default() as graph:
        controls = [PsControl(ps, job.max_workers) for ps in range(plan.num_ps)]
        global_step = BucketStore(GLOBAL_STEP, job.max_workers)
        pulled = build_pulled_model(model, inputs, TRAIN, plan, index, job.max_workers)
        finite = _finite(pulled, plan.num_ps, job.mode, index)
        pushes, push_ids, learning_rates = _push_feeds(finite)
        gradients = bucket_gradients(pulled, plan, index)
        optimizers = {
            bucket.name: _make_optimizer(pulled, bucket, learning_rates[bucket.ps])
            for bucket in plan.buckets
            if bucket.name in gradients
        }
        step: dict[str, Any] = {"loss": pulled.spec.loss}
        rounds = None
        trained = [
            Trained(pulled.stores[n], gradients[n], applying(o, pulled.stores[n])) for n, o in optimizers.items()
        ]
        if job.mode == "sync":
            step["examples"] = _examples(pulled, index)
            limits = (pulled.spec.clip_norm, pulled.spec.clip_value)
            rounds = build_rounds(
                trained, global_step, controls, pushes, learning_rates, index, step["examples"], *limits
            )
            step["kept"] = rounds.keep
            step["global_step"] = global_step.master.read_value()[0]
        else:
            step["outcomes"], step["global_step"] = _push(
                trained, global_step, controls, pushes, learning_rates, pulled, index
            )
        optimizer_variables = {name: list(optimizer.variables()) for name, optimizer in optimizers.items()}
        untrained = [s.name for s in plan.specs if plan.of(s.name)[0].name not in gradients]
        return TrainGraph(
            graph, plan, pulled, controls, global_step, push_ids, learning_rates, step, rounds, optimizer_variables,
            untrained,
        )  # fmt: skip


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
        examples = pulled.spec.examples
        if examples is None:
            first = pulled.batch[0]
            examples = tf1.shape(first)[0] if first.shape.rank else tf1.ones([])
        weight = tf1.cast(examples, tf1.float64)
        return tf1.where(tf1.is_finite(pulled.spec.loss), weight, tf1.zeros_like(weight))


def _push(
    trained: list[Trained],
    global_step: BucketStore,
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
    outcome, count = _count_step(global_step, controls[0], pushes[0])
    outcomes[0].append(outcome)
    return _stack(outcomes), count


def _of_live(apply: Apply, gradient: BucketGradient) -> Callable[[Callable[[Any], Any]], Any]:
    return lambda live: apply(gradient.map(live))


def _push_feeds(finite: list[Any]) -> tuple[list[Push], list[Any], list[Any]]:
    """Per ps what comes with every push.  Placeholders on the ps itself: no edge leads from ps to ps."""
    pushes, push_ids, learning_rates = [], [], []
    for ps, is_finite in enumerate(finite):
        with tf1.device(ps_device(ps)):
            push_id = tf1.placeholder(tf1.int64, [3], name=f"push_id_{ps}")
            push_ids.append(push_id)
            learning_rates.append(tf1.placeholder(tf1.float32, [], name=f"learning_rate_{ps}"))
            pushes.append(Push(push_id[0], push_id[1], push_id[2], is_finite))
    return pushes, push_ids, learning_rates


def _make_optimizer(pulled: PulledModel, bucket: Bucket, learning_rate: Any) -> Any:
    """One optimizer per bucket: everything that belongs to it stays on its ps."""
    factory = pulled.spec.optimizer
    assert factory is not None
    with tf1.device(ps_device(bucket.ps)):
        optimizer = factory(learning_rate)
    if not isinstance(optimizer, tf1.train.Optimizer):
        raise UsageError(
            f"optimizer made {type(optimizer).__name__}; it must make a tf.compat.v1.train.Optimizer, "
            "for example optimizer=tf1.train.AdamOptimizer"
        )
    return optimizer


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
