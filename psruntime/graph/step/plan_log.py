"""What a worker logs of its graph, once."""

from __future__ import annotations

from collections.abc import Callable

from psruntime.graph.step.train_graph import TrainGraph


def log_plan(graph: TrainGraph, is_packed: bool, log: Callable[..., None]) -> None:
    """Logs the plan, and the variables that train in another way, or at another cost, than the user may expect.

    is_packed: whether the plan puts variables together.
    """
    plan = graph.plan
    log("plan", variables=len(plan.trained), buckets=len(plan.buckets))
    alone = [spec.name for spec in plan.trained if spec.whole]
    if alone and is_packed:
        log(
            "unpacked", variables=" ".join(alone), reason="each has a constraint, or an optimizer that may need "
            "all of it: it is not one of those that are known to treat every entry alike",
        )  # fmt: skip
    if graph.dense_updates:
        pieces = [piece for bucket in plan.buckets if bucket.name in graph.dense_updates for piece in bucket.pieces]
        log(
            "dense_updates", tables=" ".join(dict.fromkeys(piece.variable for piece in pieces)),
            bytes=sum(graph.dense_updates.values()), reason="every step reads and writes all rows of these tables and "
            "of their slots, that many bytes, as AdamOptimizer of tf.train does; psruntime.optimizers.LazyAdam reads "
            "and writes the rows that have a gradient",
        )  # fmt: skip
    if own := graph.model.worker_copies.own:
        log(
            "own_copies", variables=" ".join(own), reason="each worker changes its own copy, and a checkpoint has the "
            "chief's; give aggregation=tf.VariableAggregation.SUM to tf.get_variable where the changes of all count",
        )  # fmt: skip
    if graph.untrained:
        log("untrained", variables=" ".join(graph.untrained), reason="the loss does not depend on them")
    if graph.unmoved:
        log(
            "unmoved", variables=" ".join(graph.unmoved),
            reason="no step runs their updates; give them in ModelSpec.updates, for example layer.updates",
        )  # fmt: skip
