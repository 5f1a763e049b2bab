"""Tables that are whole on a ps: what travels in a step, and where everything is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.graph.step.test_placement import task_of
from tests.support.embedding_model import IDS, ROWS, WIDTH, embedding_model
from tests.support.local_cluster import LocalCluster, Run, train

pytestmark = pytest.mark.optimised

TABLES = {"embedding", "wide"}


@pytest.fixture(scope="module")
def run() -> Run:
    """One step on two ps, for the tests that only read its graph."""
    return train(LocalCluster(2), embedding_model(OPTIMIZERS["adagrad"]), 1, plan="per-variable")


@pytest.mark.long
def test_only_rows_travel(run: Run) -> None:
    """No tensor that leaves the ps in a step is as large as a table, nor does one that comes back."""
    graph = run.graph
    nodes = step_operations(graph)
    from_ps = [
        tensor
        for op in nodes
        for tensor in op.inputs
        if task_of(op) == "worker/0" and task_of(tensor.op).startswith("ps/") and tensor.dtype == tf1.float32
    ]
    known = {tuple(t.shape.as_list()) for t in from_ps}
    assert (None, WIDTH) in known and (None,) in known, "looked-up rows"
    assert not {(ROWS, WIDTH), (ROWS,), (ROWS * WIDTH,)} & known
    assert not [
        op for op in nodes if task_of(op) == "worker/0" and any(tensor.dtype == tf1.resource for tensor in op.inputs)
    ]
    to_ps = [t for op in nodes for t in op.inputs if task_of(op).startswith("ps/") and task_of(t.op) == "worker/0"]
    assert not {(ROWS, WIDTH), (ROWS,), (ROWS * WIDTH,)} & {tuple(t.shape.as_list()) for t in to_ps if t.shape.rank}


def step_operations(graph: Any) -> list[Any]:
    fetches = [t.op.name for t in tf1.nest.flatten(graph.step)]
    step = tf1.graph_util.extract_sub_graph(graph.graph.as_graph_def(), fetches)
    return [graph.graph.get_operation_by_name(node.name) for node in step.node]


def test_each_id_and_each_row_travels_once(run: Run) -> None:
    graph = run.graph
    ids = np.zeros([8, IDS], np.int64)
    ids[:, 1] = 7  # two distinct rows of 50
    feed = dict(zip(graph.model.batch, [ids, np.zeros([8], np.float32)], strict=True))
    feed.update({graph.request.fed: graph.request.values((0, 77, 100, 77))})
    looked_up, pushed = graph_of_rows(graph)
    with run.cluster.session(graph.graph) as session:
        rows, (values, indices) = session.run([looked_up, pushed], feed)
    assert [len(r) for r in rows] == [2, 1, 2], "each id once: embedding, its second lookup, wide"
    assert indices.tolist() == [0, 7]
    assert values.shape == (2, WIDTH)


def graph_of_rows(graph: Any) -> tuple[list[Any], list[Any]]:
    nodes = step_operations(graph)
    gathers = [op.outputs[0] for op in nodes if op.type == "ResourceGather" and op.inputs[0].op.type == "Identity"]
    copies = [op.inputs[0].op for op in nodes if op.type == "Switch" and "embedding" in op.name]
    tensors = [op.inputs[0] for op in copies if op.type == "Identity" and task_of(op.inputs[0].op) == "worker/0"]
    return gathers, sorted(tensors, key=lambda t: t.dtype != tf1.float32)


@pytest.mark.long
def test_no_edge_leads_from_ps_to_ps_and_a_table_begins_on_its_ps() -> None:
    for optimizer in ("adam", "ftrl"):
        graph = train(LocalCluster(2), embedding_model(OPTIMIZERS[optimizer]), 0, plan="per-variable").graph
        assert {bucket.ps for bucket in graph.plan.buckets} == {0, 1}
        edges = [
            (source.name, op.name)
            for op in graph.graph.get_operations()
            for source in [*(tensor.op for tensor in op.inputs), *op.control_inputs]
            if task_of(op).startswith("ps/") and task_of(source).startswith("ps/") and task_of(source) != task_of(op)
        ]
        assert not edges
        for name in TABLES:
            store = graph.model.stores[name]
            assert {task_of(v.handle.op) for v in [store.master, *graph.optimizers[name].variables]} == {
                f"ps/{store.bucket.ps}"
            }
            own = graph.graph.get_operation_by_name(name)
            assert task_of(own) == f"ps/{store.bucket.ps}", "its initial value is computed beside its own handle"


def test_the_initial_value_of_a_table_is_computed_on_its_ps(run: Run) -> None:
    graph = run.graph
    for name in TABLES:
        value = graph.model.captured.initial_values[name].op
        assert value.colocation_groups() == [f"loc:@{name}".encode()]
        (assign,) = (
            op for op in graph.graph.get_operations() if value in [t.op for t in op.inputs[1:]] and is_fill(op)
        )
        assert task_of(assign) == f"ps/{graph.model.stores[name].bucket.ps}"


def is_fill(op: Any) -> bool:
    return op.type == "AssignVariableOp" and op.inputs[0].op.name.startswith("psruntime/master/")


def test_rows_are_read_after_the_version_and_the_lock_waits_for_values_and_indices(run: Run) -> None:
    """Else rows could be older than their version says, and a dead worker could hold a bucket's mutex."""
    graph = run.graph
    nodes = step_operations(graph)
    lookups = [op for op in nodes if op.type == "ResourceGather" and task_of(op.inputs[0].op).startswith("ps/")]
    of_tables = [op.inputs[0].op for op in lookups if op.inputs[0].op.type == "Identity"]
    versions = {graph.model.versions[name].op for name in TABLES}
    assert {source for handle in of_tables for source in handle.control_inputs} == versions
    for name in TABLES:
        section = graph.model.stores[name].section.name
        lock, _ = (op for op in nodes if op.type == "MutexLock" and op.name.startswith(f"guard/{section}/"))
        switched = {op.inputs[0].op for op in nodes if op.type == "Switch" and op.name.startswith(f"guard/{name}/")}
        copies = {op for op in switched if op.type == "Identity" and task_of(op.inputs[0].op) == "worker/0"}
        assert len(copies) == 2 and all(task_of(op).startswith("ps/") for op in copies)
        assert copies <= set(lock.control_inputs)
