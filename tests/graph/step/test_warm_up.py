"""A warm-up leaves no trace: whatever could leave one waits for a check that fails."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.graph.base.graphs import ancestors
from psruntime.graph.embedding.embedding import embedding
from psruntime.graph.step.train_graph import _any_value, step_warm_up
from psruntime.model import ModelSpec
from tests.support.local_cluster import LocalCluster, linear_model, train
from tests.support.selection import long_after, long_but
from tests.support.small_models import get, linear, model_of, of_table

READS = {"Placeholder", "PlaceholderWithDefault", "VarHandleOp", "ReadVariableOp", "ResourceGather", "MutexV2"}


def with_table(x: Any, y: Any, ids: Any) -> Any:
    return of_table(lambda table, _: tf1.nn.embedding_lookup(table, ids))(x, y, ids)


def with_ids(x: Any, y: Any, ids: Any) -> Any:
    return linear(embedding(tf1.cast(ids, tf1.int64), "users", 4, capacity=64), get("head", [4, 1]), y)


def with_loop(x: Any, y: Any, _: Any) -> ModelSpec:
    """Draws numbers in a loop of operations."""
    tf1.disable_control_flow_v2()
    try:
        _, noise = tf1.while_loop(
            lambda i, _: i < 2, lambda i, total: (i + 1, total + tf1.random.normal([], seed=4)), [0, 0.0]
        )
    finally:
        tf1.enable_control_flow_v2()
    return ModelSpec(linear(x, get("kernel", [5, 1]), y) + noise, tf1.train.AdagradOptimizer, 0.1)


MODELS = {"dense": linear_model(tf1.train.AdamOptimizer), "table": model_of(with_table), "ids": model_of(with_ids)}


@pytest.mark.parametrize("mode", long_but(["sync"], ["async", "sync"]))
@pytest.mark.parametrize(
    ("model", "settings"),
    long_after(
        1, [("dense", {}), ("dense", {"top_k": 0.1}), ("table", {}), ("dense", {"wire": "bfloat16"}), ("ids", {})]
    ),
)
def test_all_that_leaves_a_trace_waits_for_the_check(model: str, settings: dict[str, Any], mode: str) -> None:
    run = train(LocalCluster(2), MODELS[model], 0, mode=mode, **settings)
    graph = run.graph
    runs = [graph.step, *([graph.rounds.contribute, graph.rounds.close] if graph.rounds else [])]
    checks = [graph.request.checked, *([graph.rounds.request.checked] if graph.rounds else [])]
    operations = ancestors(tf1.nest.flatten(runs)) - ancestors(checks)
    leaving = [op for op in operations if op.op_def.is_stateful and op.type not in READS]
    assert len(leaving) > 10
    assert not [op.name for op in leaving if not ancestors([op]).intersection(checks)]


def test_what_is_drawn_in_a_loop_of_operations_cannot_be_held_back() -> None:
    run = train(LocalCluster(1), model_of(with_loop), 1)
    assert step_warm_up(run.graph) is None
    assert run.results[0].global_step == 1


def test_any_batch_can_be_fed() -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        for dtype in (tf1.string, tf1.bool, tf1.int8, tf1.float32):
            fed = tf1.placeholder(dtype, [None, 2])
            assert session.run(tf1.shape(fed), {fed: _any_value(fed)}).tolist() == [1, 2]
