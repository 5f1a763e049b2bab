"""How many tensors travel in a step: what the report of a plan says is what TensorFlow makes of the graph."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.plan_report import report
from psruntime.graph.inputs import InputStream
from psruntime.model import Context
from tests.support.embedding_model import embedding_model
from tests.support.local_cluster import INCARNATION, LocalCluster, linear_model, train


def tensors_of_a_step(cluster: LocalCluster, make: Any, optimizer: Any) -> tuple[int, Any]:
    """Tensors between processes in the graphs as TensorFlow has partitioned them, and the plan."""
    model = make(optimizer)
    graph = train(cluster, model, 1).graph
    batch = InputStream(model, Context("train", 0, 1, 8, "", 3)).draw_endlessly()
    feed: dict[Any, Any] = dict(zip(graph.model.batch, batch, strict=True))
    feed.update(dict.fromkeys(graph.push_ids, (0, INCARNATION, 1000, 1)))
    feed.update(dict.fromkeys(graph.learning_rates, (0.1,)))
    told = tf1.RunMetadata()
    with cluster.session(graph.graph) as session:
        session.run(graph.step, feed, options=tf1.RunOptions(output_partition_graphs=True), run_metadata=told)
    nodes = [node for partition in told.partition_graphs for node in partition.node if node.op == "_Recv"]
    return sum(task(node, "send_device") != task(node, "recv_device") for node in nodes), graph.plan


def task(node: Any, end: str) -> tuple[Any, Any]:
    spec = tf1.DeviceSpec.from_string(node.attr[end].s.decode())
    return spec.job, spec.task


@pytest.mark.parametrize("optimizer", [tf1.train.AdamOptimizer, tf1.train.GradientDescentOptimizer])
@pytest.mark.parametrize("num_ps", [1, 2, 4])  # of four some have nothing
def test_of_a_dense_model_it_is_exact(num_ps: int, optimizer: Any) -> None:
    counted, plan = tensors_of_a_step(LocalCluster(num_ps), linear_model, optimizer)
    assert counted == report(plan).tensors


def test_of_tables_it_counts_one_lookup_each() -> None:
    """The model looks one of its tables up twice: ids go once more, and rows come."""
    counted, plan = tensors_of_a_step(LocalCluster(2), embedding_model, tf1.train.AdamOptimizer)
    assert counted == report(plan).tensors + 2
