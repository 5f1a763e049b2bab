"""Builds the training graph of a worker by the job's mode, and the step of the modes async and bounded."""

from __future__ import annotations

from dataclasses import replace

import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.config.schedule import SYNC
from psruntime.core.plan.plan import Plan
from psruntime.graph.base.graphs import WorkerGraph
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import Tensor
from psruntime.graph.buckets.apply import counting_update
from psruntime.graph.buckets.bucket_store import GLOBAL_STEP, BucketStore, PsControl, by_section
from psruntime.graph.buckets.gradient import BucketGradient
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.gradients import ONE_TOWER, Towers
from psruntime.graph.model.identity import identity_of
from psruntime.graph.model.pulled_model import PulledModel
from psruntime.graph.push.guard import PushedBucket, copied_to_ps, guarded_update
from psruntime.graph.push.step_messages import Outcomes, PushRequest
from psruntime.graph.step.round_step import build_round_step
from psruntime.graph.step.setup import AggregatedBucket, StepSetup, TrainedBucket
from psruntime.graph.step.train_graph import TrainGraph
from psruntime.model import Model


def build_push_step(setup: StepSetup) -> TrainGraph:
    """Builds the step, with the updates of all buckets, each behind its guard."""
    pulled, computed = setup.gradients(setup.pulled_model())
    gradients = setup.clipped(pulled, computed)
    aggregated = setup.aggregated(pulled)
    finite = setup.is_finite(pulled, [*gradients.values(), *(bucket.pushed for bucket in aggregated)])
    request = PushRequest(setup.rules(pulled), setup.index, setup.controls, finite)
    trained = setup.trained_buckets(pulled, gradients, request)
    outcomes, global_step = _push(setup, pulled, trained, aggregated, request, finite)
    step = {"outcomes": outcomes, "global_step": global_step}
    if setup.has_local_rounds:
        step["examples"] = setup.weight(pulled, finite)
    return setup.handles(pulled, request, trained, step, computed, finite)


def _push(
    setup: StepSetup,
    pulled: PulledModel,
    trained: list[TrainedBucket],
    aggregated: list[AggregatedBucket],
    request: PushRequest,
    finite: Tensor,
) -> tuple[list[Tensor], Tensor]:
    """Pushes what a step of this worker made; (outcomes per ps, global step after it)."""
    pushed = [
        PushedBucket(each.store, _copied(each.store, setup.sent(each, finite)), each.update, each.by_staleness)
        for each in trained
    ]
    for store, gradient, aggregation in aggregated:
        update = aggregation.push_update(store, request.on[store.bucket.ps])
        pushed.append(PushedBucket(store, _copied(store, gradient), update))
    pushed.append(_one_step(pulled.global_step))
    updates = {
        section.name: guarded_update(section, setup.controls[section.ps], request.on[section.ps], buckets)
        for section, buckets in by_section(pushed)
    }
    outcomes = Outcomes(setup.plan.num_ps)
    for store in (bucket.store for bucket in pushed):
        outcome, updated = updates[store.section.name]
        outcomes.add(store.bucket.ps, outcome)
    with tf1.device(ps_device(GLOBAL_STEP.ps)), tf1.control_dependencies([updated]):  # of the last, the global step
        global_step = pulled.global_step.master.read_value()[0]
    return outcomes.bring(global_step, setup.index)


def _copied(store: BucketStore, gradient: BucketGradient) -> BucketGradient:
    return copied_to_ps(store, gradient, store.master.dtype.base_dtype)


def _one_step(store: BucketStore) -> PushedBucket:
    """Counts the update in the global step, by the rule of every bucket."""
    with tf1.device(ps_device(store.bucket.ps)):
        return PushedBucket(store, BucketGradient(tf1.ones([1], tf1.int64)), counting_update(store))


def build_training(
    model: Model,
    inputs: InputStream,
    plan: Plan,
    job: JobConfig,
    index: int,
    towers: Towers = ONE_TOWER,
    has_local_rounds: bool = False,
) -> TrainGraph:
    """Builds the graph of worker `index`.  has_local_rounds: as in StepSetup.

    Raises:
        UsageError: the model or its optimizer cannot be used; the message says why.
    """
    with WorkerGraph(index).as_default():
        controls = [PsControl(ps, job.max_workers) for ps in range(plan.num_ps)]
        setup = StepSetup(model, inputs, plan, job, index, controls, towers, has_local_rounds)
        graph = build_round_step(setup) if job.mode == SYNC else build_push_step(setup)
    aggregations = {spec.name: spec.aggregation for spec in plan.aggregated}
    return replace(graph, identity=identity_of(graph.model.spec, model, graph.model.captured.constraints, aggregations))
