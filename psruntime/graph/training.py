"""The training graph: pull, the user's model, push.  Built once; sessions on it come and go with the views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.core.plan import Bucket, Plan
from psruntime.errors import UsageError
from psruntime.graph.devices import ps_device, worker_device
from psruntime.graph.guard import Push, guarded_update
from psruntime.graph.inputs import InputStream
from psruntime.graph.pulled import PulledModel, build_pulled_model
from psruntime.graph.store import GLOBAL_STEP, BucketStore, PsControl
from psruntime.model import TRAIN, Model


@dataclass(frozen=True)
class TrainGraph:
    """Handles into the graph.

    batch: placeholders of one batch.  push_ids: int64 [3] placeholder per ps (worker, incarnation,
    sequence number).  learning_rates: float32 [] placeholder per ps.  step: what a training step fetches,
    {"loss": float [], "global_step": int64 [], "outcomes": one int64 [buckets, 2] per ps}.
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
        pushes, push_ids, learning_rates = _push_feeds(plan.num_ps, pulled.spec.loss, index)
        gradients = _flat_gradients(pulled, plan, index)
        outcomes: list[list[Any]] = [[] for _ in range(plan.num_ps)]
        optimizer_variables = {}
        for bucket in plan.buckets:
            if bucket.name not in gradients:
                continue
            optimizer = _make_optimizer(pulled, bucket, learning_rates[bucket.ps])
            outcome, _ = guarded_update(
                pulled.stores[bucket.name],
                controls[bucket.ps],
                pushes[bucket.ps],
                pulled.versions[bucket.name],
                [gradients[bucket.name], learning_rates[bucket.ps]],
                _apply_gradient(optimizer, gradients[bucket.name], pulled.stores[bucket.name]),
            )
            outcomes[bucket.ps].append(outcome)
            optimizer_variables[bucket.name] = list(optimizer.variables())
        outcome, count = _count_step(global_step, controls[0], pushes[0])
        outcomes[0].append(outcome)
        step = {"loss": pulled.spec.loss, "global_step": count, "outcomes": _stack(outcomes)}
        untrained = [s.name for s in plan.specs if plan.of(s.name)[0].name not in gradients]
        return TrainGraph(
            graph, plan, pulled, controls, global_step, push_ids, learning_rates, step, optimizer_variables, untrained
        )


def _push_feeds(num_ps: int, loss: Any, index: int) -> tuple[list[Push], list[Any], list[Any]]:
    """Per ps what comes with every push.  Placeholders on the ps itself: no edge leads from ps to ps."""
    with tf1.device(worker_device(index)):
        finite = tf1.is_finite(loss)
    pushes, push_ids, learning_rates = [], [], []
    for ps in range(num_ps):
        with tf1.device(ps_device(ps)):
            push_id = tf1.placeholder(tf1.int64, [3], name=f"push_id_{ps}")
            push_ids.append(push_id)
            learning_rates.append(tf1.placeholder(tf1.float32, [], name=f"learning_rate_{ps}"))
            pushes.append(Push(push_id[0], push_id[1], push_id[2], tf1.identity(finite)))
    return pushes, push_ids, learning_rates


def _flat_gradients(pulled: PulledModel, plan: Plan, index: int) -> dict[str, Any]:
    """Bucket name -> gradient [size] on the worker; buckets that the loss does not depend on are absent."""
    with tf1.device(worker_device(index)):
        gradients = tf1.gradients(pulled.spec.loss, [pulled.views[spec.name] for spec in plan.specs])
        flat = {}
        for spec, gradient in zip(plan.specs, gradients, strict=True):
            if gradient is None:
                continue
            whole = tf1.reshape(tf1.convert_to_tensor(gradient), [-1])
            for bucket in plan.of(spec.name):
                flat[bucket.name] = whole[bucket.start : bucket.start + bucket.size]
        return flat


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


def _apply_gradient(optimizer: Any, gradient: Any, store: BucketStore) -> Any:
    return lambda live: optimizer.apply_gradients([(live(gradient), store.master)])


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
