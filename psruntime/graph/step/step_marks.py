"""Marks within a step: when its variables are on the worker, and when its gradients are.

A mark reads the clock once others have run, and nothing waits for it.  So pulls and computation overlap as before: what
is computed before the last variable is there counts as part of the pull.
"""

from __future__ import annotations

import time

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.plan import Plan
from psruntime.graph.base.devices import worker_cpu
from psruntime.graph.base.types import Op, Tensor
from psruntime.graph.model.pulled_model import PulledModel
from psruntime.graph.ops.ancestors import ancestors
from psruntime.graph.ops.seeds import is_deterministic


def step_marks(pulled: PulledModel, plan: Plan, finite: Tensor, index: int) -> dict[str, Tensor]:
    """{"pulled", "computed"}: seconds since 1970 by the clock of worker `index`, float64 [].

    finite: as StepSetup.is_finite, which needs all gradients, and for which every push waits.
    """
    needed = ancestors([finite])
    rows = [result for group in plan.groups for each in pulled.lookups.fetched(group) for result in each.results]
    sources = {op for op in [*pulled.pulled, *(tensor.op for tensor in rows)] if op in needed and _is_on_worker(op)}
    return {"pulled": _mark(sorted(sources, key=lambda op: op.name), index), "computed": _mark([finite], index)}


def _mark(after: list[Tensor | Op], index: int) -> Tensor:
    with tf1.device(worker_cpu(index)), tf1.control_dependencies(after):
        if is_deterministic():  # TensorFlow runs no Timestamp then
            return tf1.ensure_shape(tf1.numpy_function(time.time, [], tf1.float64), [])
        return tf1.timestamp()


def _is_on_worker(op: Op) -> bool:
    return bool(tf1.DeviceSpec.from_string(op.device).job == "worker")
