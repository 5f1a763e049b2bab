"""Where things are: everything of a bucket on its ps, no edge from one ps to another."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.core.plan.plan import make_plan
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model.gradients import Towers
from psruntime.graph.model.pulled_model import record_specs
from psruntime.graph.step.build import build_training
from psruntime.graph.step.train_graph import TrainGraph
from psruntime.model import Context
from tests.support.embedding_model import embedding_model
from tests.support.local_cluster import INCARNATION, LocalCluster, linear_model, train


@pytest.fixture(scope="module", params=["adam", "rmsprop"])
def graph(request: Any) -> TrainGraph:
    optimizer = {"adam": tf1.train.AdamOptimizer, "rmsprop": tf1.train.RMSPropOptimizer}[request.param]
    model = linear_model(optimizer)
    inputs = InputStream(model, Context("train", 3, 1, 8, "", 3))
    job = JobConfig(ps=3, slice_bytes=64)
    plan = make_plan(record_specs(model, inputs, "train"), job.ps, *job.plan_sizes)
    return build_training(model, inputs, plan, job, index=3)


def task_of(op: Any) -> str:
    device = tf1.DeviceSpec.from_string(op.device) if op.device else None
    return f"{device.job}/{device.task}" if device and device.job else ""


def test_every_variable_of_a_bucket_is_on_its_ps(graph: TrainGraph) -> None:
    assert {bucket.ps for bucket in graph.plan.buckets} == {0, 1, 2}
    for bucket in graph.plan.buckets:
        store = graph.model.stores[bucket.name]
        own = [store.master, *store.section.counters, *graph.optimizers[bucket.name].variables]
        assert len(own) >= 5
        assert {task_of(v.handle.op) for v in own} == {f"ps/{bucket.ps}"}


def test_the_model_is_on_its_worker(graph: TrainGraph) -> None:
    products = [op for op in graph.graph.get_operations() if op.type == "MatMul"]
    assert products
    assert {task_of(op) for op in products} == {"worker/3"}


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
@pytest.mark.parametrize("make", [linear_model, embedding_model])
def test_values_arrive_in_host_memory(make: Any, wire: str) -> None:
    """Also where the model is on a GPU: one copy takes them there, as they travelled."""
    model = make(tf1.train.AdamOptimizer)
    inputs = InputStream(model, Context("train", 0, 1, 8, "", 3))
    job = JobConfig(ps=2, wire=wire)
    plan = make_plan(record_specs(model, inputs, "train"), job.ps, *job.plan_sizes)
    built = build_training(model, inputs, plan, job, 0, Towers(("gpu:0",)))
    arrivals = [
        (tensor, op)
        for op in built.graph.get_operations()
        for tensor in op.inputs
        if task_of(op) == "worker/0" and task_of(tensor.op).startswith("ps/") and tensor.dtype.is_floating
    ]
    assert {tensor.dtype.name for tensor, _ in arrivals} == {wire}
    assert {tf1.DeviceSpec.from_string(op.device).device_type for _, op in arrivals} == {"CPU"}


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_step_has_its_marks_with_deterministic_operations(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TF_DETERMINISTIC_OPS TensorFlow runs no Timestamp."""
    monkeypatch.setattr("psruntime.graph.step.train_graph.is_deterministic", lambda: deterministic)
    model = linear_model(tf1.train.AdamOptimizer)
    inputs = InputStream(model, Context("train", 0, 1, 8, "", 3))
    plan = make_plan(record_specs(model, inputs, "train"), 1, *JobConfig().plan_sizes)
    built = build_training(model, inputs, plan, JobConfig(), 0)
    clocks = {mark.op.type for mark in built.step["marks"].values()}
    assert clocks == ({"EnsureShape"} if deterministic else {"Timestamp"})
    assert all(mark.shape == [] and mark.dtype == tf1.float64 for mark in built.step["marks"].values())
    assert any(op.type == "Timestamp" for op in built.graph.get_operations()) != deterministic


def test_every_operation_of_a_step_has_a_place(graph: TrainGraph) -> None:
    fetches = tf1.nest.flatten(graph.step)
    step = tf1.graph_util.extract_sub_graph(graph.graph.as_graph_def(), [t.op.name for t in fetches])
    homeless = {node.op for node in step.node if not node.device}
    assert homeless <= {"ReadVariableOp"}  # TensorFlow puts a read where its variable is


def test_no_edge_leads_from_ps_to_ps(graph: TrainGraph) -> None:
    edges = [
        f"{source.name} on {task_of(source)} -> {op.name} on {task_of(op)}"
        for op in graph.graph.get_operations()
        for source in [*(tensor.op for tensor in op.inputs), *op.control_inputs]
        if task_of(op).startswith("ps/") and task_of(source).startswith("ps/") and task_of(source) != task_of(op)
    ]
    assert not edges


@pytest.mark.long
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("make", [linear_model, embedding_model])
@pytest.mark.optimised
def test_what_a_lock_waits_for_is_on_the_ps_when_it_is_taken(make: Any, mode: str) -> None:
    """In the graphs as TensorFlow has partitioned them: it moves a Switch to the device of its data."""
    cluster = LocalCluster(2)
    model = make(tf1.train.AdamOptimizer)
    graph = train(cluster, model, 1, mode=mode).graph
    batch = InputStream(model, Context("train", 0, 1, 8, "", 3)).draw_endlessly()
    feed: dict[Any, Any] = dict(zip(graph.model.batch, batch, strict=True))
    feed.update({graph.request.fed: graph.request.values((0, INCARNATION, 1000, 1))})
    fetches: Any = graph.step
    if graph.rounds:
        fetches = [graph.step, graph.rounds.contribute]
        feed[graph.rounds.request.fed] = graph.rounds.request.values((0, INCARNATION, 1001, 1))
    told = tf1.RunMetadata()
    with cluster.session(graph.graph) as session:
        session.run(fetches, feed, options=tf1.RunOptions(output_partition_graphs=True), run_metadata=told)
    nodes = [node for partition in told.partition_graphs for node in partition.node]
    inside = [node for node in nodes if node.name.startswith(("guard/", "contribute/"))]
    assert {node.op for node in inside} >= {"Switch", "MutexLock", "ConsumeMutexLock"}
    switches = {node.device.split("/task")[0] for node in inside if node.op == "Switch"}
    assert switches == {"/job:ps/replica:0"}
    locks = [node for node in inside if node.op == "MutexLock"]
    here = {node.name for node in nodes if node.op != "_Recv" and "/job:ps" in node.device}
    assert not [(lock.name, list(lock.input)) for lock in locks if not here & {name.lstrip("^") for name in lock.input}]
