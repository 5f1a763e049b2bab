"""Runs that make a session ready for steps: they fail before they have done anything.

The first run of a step in a session takes up to a second and more: TensorFlow rewrites the graph, and registers its
parts at each server.  It does so whatever the run is fed.  So these are fed headers that are no push
(step_messages.py), and each operation that would leave a trace on the worker waits until the header was checked.
Of a ps it reads no more than its variables: everything else there waits for the header.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.graph.base.types import Array, Op, Session, Tensor
from psruntime.graph.ops.ancestors import ancestors
from psruntime.graph.step.train_graph import TrainGraph

_READS = frozenset(
    {"Placeholder", "PlaceholderWithDefault", "VarHandleOp", "ReadVariableOp", "VarIsInitializedOp", "ResourceGather"}
)


class StepWarmUp:
    """That of a training graph, in which no session has run yet.

    is_possible: not where the model's loop over operations of TensorFlow (tf.while_loop) leaves traces.
    """

    def __init__(self, graph: TrainGraph) -> None:
        requests = [graph.request, *([graph.rounds.request] if graph.rounds else [])]
        self._runs = [(graph.step, graph.fed)]
        if graph.rounds:
            self._runs += [graph.rounds.runs["contribute"], graph.rounds.runs["close"]]
        self._requests = {request.fed: request.no_push for request in requests}
        needed = ancestors(request.checked for request in requests)
        run = ancestors(tf1.nest.flatten(graph.step)) - needed
        leaving = [op for op in run if not _is_on_ps(op) and _leaves_a_trace(op)]
        self.is_possible = not any(map(_is_in_loop, leaving))
        for op in leaving if self.is_possible else ():
            op._add_control_input(graph.request.checked)

    def run(self, session: Session) -> None:
        """Makes the session ready, as far as that is possible."""
        if not self.is_possible:
            return
        for fetches, fed in self._runs:
            values = [self._requests.get(tensor, _any_value(tensor)) for tensor in fed]
            with suppress(tf1.errors.OpError):
                session.calling(fetches, fed)(*values)
                raise AssertionError("a run that is no push has ended well")


def _is_on_ps(op: Op) -> bool:
    return bool(tf1.DeviceSpec.from_string(op.device).job == "ps")


def _leaves_a_trace(op: Op) -> bool:
    return op.type not in _READS and (op.op_def is None or op.op_def.is_stateful)


def _is_in_loop(op: Op) -> bool:
    context = op._get_control_flow_context()
    while context is not None and not context.IsWhileContext():
        context = context.outer_context
    return context is not None


def _any_value(tensor: Tensor) -> Array:
    shape = [1 if size is None else size for size in tensor.shape.as_list()] if tensor.shape.rank else []
    return np.full(shape, b"" if tensor.dtype == tf1.string else 0, tensor.dtype.as_numpy_dtype)
