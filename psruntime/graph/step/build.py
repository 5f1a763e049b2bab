"""Builds the training graph of a worker, by the job's mode."""

from __future__ import annotations

from dataclasses import replace

from psruntime.config import JobConfig
from psruntime.core.plan.plan import Plan
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.identity import identity_of
from psruntime.graph.model.towers import ONE_TOWER, Towers
from psruntime.graph.ops.seeds import WorkerGraph
from psruntime.graph.step.push_step import build_push_step
from psruntime.graph.step.round_step import build_round_step
from psruntime.graph.step.setup import StepSetup
from psruntime.graph.step.train_graph import TrainGraph
from psruntime.graph.store.bucket_store import PsControl
from psruntime.model import Model


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
        graph = build_round_step(setup) if job.mode == "sync" else build_push_step(setup)
    aggregations = {spec.name: spec.aggregation for spec in plan.aggregated}
    return replace(graph, identity=identity_of(graph.model.spec, model, graph.model.captured.constraints, aggregations))
