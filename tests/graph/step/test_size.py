"""How much of a step's graph each bucket puts on its ps, which keeps a copy of it for the session of every worker."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.model import ModelSpec
from tests.support.local_cluster import LocalCluster, train
from tests.support.small_models import get, linear, model_of

pytestmark = pytest.mark.optimised

FEW, MANY = 2, 10
MOST = {"async": 95, "sync": 170}  # operations a bucket; with constants in every section 123 and 228


class Partitions(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Keeps the graphs of a step, as TensorFlow rewrote and partitioned them."""

    graphs: Any = ()

    def before_run(self, _: Any) -> Any:
        return tf1.train.SessionRunArgs(None, options=tf1.RunOptions(output_partition_graphs=True))

    def after_run(self, _: Any, values: Any) -> None:
        self.graphs = values.run_metadata.partition_graphs


def on_ps(mode: str, buckets: int) -> list[Any]:
    """The operations of one step on the ps."""
    partitions = Partitions()

    def build(x: Any, y: Any, _: Any) -> ModelSpec:
        kernel = tf1.add_n([get(f"kernel_{i}", [5, 1]) for i in range(buckets)])
        return ModelSpec(linear(x, kernel, y), tf1.train.AdamOptimizer, 0.1, hooks=[partitions])

    run = train(LocalCluster(1), model_of(build), 2, mode=mode, plan="per-variable")
    assert len(run.graph.plan.buckets) == buckets
    return [node for graph in partitions.graphs for node in graph.node if "/job:ps/" in node.device]


@pytest.mark.long
@pytest.mark.parametrize("mode", MOST)
def test_a_worker_puts_few_operations_a_bucket_on_a_ps(mode: str) -> None:
    few, many = on_ps(mode, FEW), on_ps(mode, MANY)
    assert len(few) > FEW, "the operations are seen"
    assert (len(many) - len(few)) / (MANY - FEW) <= MOST[mode]
