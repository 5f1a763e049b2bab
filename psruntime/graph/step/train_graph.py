"""The training graph of a worker, as handles, with the marks within its step and the runs that make it ready.

It is built once (build.py); the sessions on it come and go with the views.

A mark is the time at which a step's variables, or its gradients, are on the worker.  It reads the clock once others
have run, and nothing waits for it.  So pulls and computation overlap as before: what is computed before the last
variable is there counts as part of the pull.

The first run of a step in a session takes up to a second and more: TensorFlow rewrites the graph, and registers its
parts at each server.  It does so whatever the run is fed.  So a run that makes a session ready is fed headers that are
no push (step_messages.py), and each operation that would leave a trace on the worker waits until the header was
checked, which fails.  Of a ps it reads no more than its variables: everything else there waits for the header.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.plan.identity import UNSAID, ModelIdentity
from psruntime.core.plan.plan import Plan
from psruntime.graph.base.graphs import ancestors, is_deterministic
from psruntime.graph.base.server import worker_cpu
from psruntime.graph.base.types import Array, Graph, Op, Session, Tensor, Variable
from psruntime.graph.buckets.apply import RowFlags
from psruntime.graph.buckets.bucket_store import BucketSection, BucketStore, ChiefFence, PsControl
from psruntime.graph.buckets.gradient import BucketGradient
from psruntime.graph.buckets.optimizers import BucketOptimizer
from psruntime.graph.model.pulled_model import PulledModel
from psruntime.graph.push.round_sum import SectionRounds
from psruntime.graph.push.step_messages import PushRequest


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


@dataclass(frozen=True)
class LocalRoundGraph:
    """The runs of a local round, in which a worker keeps how far it has come by itself as if it were a gradient.

    change: bucket name -> placeholders for what is kept of it.  keep: bucket name -> an operation that keeps this.
    end: placeholder, int64 [1], the global step afterwards.  close: as in RoundGraph.
    """

    change: dict[str, BucketGradient]
    keep: dict[str, Op]
    end: Tensor
    close: list[Tensor]


@dataclass(frozen=True)
class RoundGraph:
    """The runs of a round that need no batch.  Lists have one entry per ps, unless stated otherwise.

    sections: every one, the global step's included.
    request: fed to all runs; a step is fed it too, with the round that it closes.
    contribute: int64 [buckets, 3], outcomes; pushes what was kept.
    squares: sum of squares of the sums of all examples' gradients, float64 []; empty unless there is a clip_norm.
    close: round states int64 [sections, ROUND_STATE_SIZE] after the update.
    after_close: bucket name -> operation after which the bucket is closed, if it was to be.
    local: None: the job has no local rounds.
    """

    sections: list[SectionRounds]
    request: PushRequest
    contribute: list[Tensor]
    squares: list[Tensor]
    close: list[Tensor]
    after_close: dict[str, Tensor]
    local: LocalRoundGraph | None = None

    @property
    def runs(self) -> dict[str, tuple[Any, list[Tensor]]]:
        """Of each run that it has: (what is fetched, the tensors that are fed)."""
        request = self.request.fed
        runs = {
            "contribute": (self.contribute, [request]),
            "squares": (self.squares, []),
            "close": (self.close, [request]),
        }
        if self.local:
            runs["close_local"] = self.local.close, [request, self.local.end]
        return runs


@dataclass(frozen=True)
class TrainGraph:
    """Handles into the graph.

    request: what to feed besides the batch.
    fence: of this worker, for what it writes when it is the chief.
    step: what a training step fetches, {"loss": float [], "global_step": int64 [], "updates": operations,
        "outcomes": one int64 [buckets, 2] per ps, in mode sync [buckets, 3], "marks": those of `step_marks`}.  In
        mode sync a step contributes its gradient to the round, and keeps it ("kept": operations) for `rounds`.  There,
        and where the job has local rounds, {"examples": float64 []} is what the batch weighs, 0 if the loss is not
        finite.
    gradient_norm: the norm over all gradients of a step, before they are limited, float64 []; no step computes it.
    optimizers: bucket name -> its optimizer, of those that are trained.
    row_flags: bucket name -> which rows of its master and slots were touched, and of a dynamic table which sets too;
        of the tables that a checkpoint may save by rows.
    untrained: names of the trainable variables that the loss does not depend on.
    unmoved: names of the variables that the model has updates for, none of which a step runs.
    dense_updates: name of a table bucket -> bytes of all its rows and slots, which every step reads and writes.
    read_step: int64 [], the global step on ps 0.  closing: the same, a fetch of its own with which a training ends.
    rounds: mode sync only.  mean_divisor: float64 [], to be fed to a step of mode sync; None: it divides by nothing.
    identity: what the model is besides its variables.
    """

    graph: Graph
    plan: Plan
    model: PulledModel
    request: PushRequest
    controls: list[PsControl]
    fence: ChiefFence
    step: dict[str, Any]
    gradient_norm: Tensor
    optimizers: dict[str, BucketOptimizer]
    row_flags: dict[str, tuple[RowFlags, ...]]
    untrained: list[str]
    unmoved: list[str]
    dense_updates: dict[str, int]
    read_step: Tensor
    closing: Tensor
    rounds: RoundGraph | None = None
    mean_divisor: Tensor = None
    identity: ModelIdentity = UNSAID

    @property
    def global_step(self) -> BucketStore:
        return self.model.global_step

    @property
    def fed(self) -> list[Tensor]:
        """The tensors that a step is fed."""
        of_rounds = [self.rounds.request.fed] if self.rounds else []
        divisor = [] if self.mean_divisor is None else [self.mean_divisor]
        return [*self.model.batch, self.request.fed, *of_rounds, *divisor]

    def values_of(self, store: BucketStore) -> list[Variable]:
        """The variables of a bucket, but for its counters: its master, and what is kept beside it."""
        return [store.master, *self.kept_beside(store.bucket.name)]

    def kept_beside(self, bucket: str) -> list[Variable]:
        """The variables with the ids of the rows of a dynamic table, and those of the bucket's optimizer."""
        id_rows, optimizer = self.model.id_rows.get(bucket), self.optimizers.get(bucket)
        return [*(id_rows.variables if id_rows else []), *(optimizer.variables if optimizer else [])]

    def stores_on(self, ps: int) -> list[BucketStore]:
        """All buckets of a ps, the global step included."""
        stores = [*self.model.stores.values(), self.global_step]
        return [store for store in stores if store.bucket.ps == ps]

    def sections_on(self, ps: int) -> list[BucketSection]:
        """The sections of a ps."""
        return [*{store.section.name: store.section for store in self.stores_on(ps)}.values()]

    @property
    def empty_ps(self) -> frozenset[int]:
        """The ps on which the plan puts no variables."""
        with_copies = {copy.ps for copy in self.plan.copies}
        every_ps = range(self.plan.num_ps)
        return frozenset(ps for ps in every_ps if ps not in with_copies and not self.stores_on(ps))

    def is_step(self, run_context: tf1.train.SessionRunContext) -> bool:
        """Whether this run of a session is a training step; any other pushes nothing and counts for nothing."""
        return run_context.original_args.fetches is self.step


_READS = frozenset(
    {"Placeholder", "PlaceholderWithDefault", "VarHandleOp", "ReadVariableOp", "VarIsInitializedOp", "ResourceGather"}
)


def step_warm_up(graph: TrainGraph) -> Callable[[Session], None] | None:
    """What makes a session ready for the steps of a training graph, in which no session has run yet.

    None where the model's loop over operations of TensorFlow (tf.while_loop) leaves traces.
    """
    requests = [graph.request, *([graph.rounds.request] if graph.rounds else [])]
    runs = [(graph.step, graph.fed)]
    if graph.rounds:
        runs += [graph.rounds.runs["contribute"], graph.rounds.runs["close"]]
    no_pushes = {request.fed: request.no_push for request in requests}
    needed = ancestors(request.checked for request in requests)
    run = ancestors(tf1.nest.flatten(graph.step)) - needed
    leaving = [op for op in run if not _is_on_ps(op) and _leaves_a_trace(op)]
    if any(map(_is_in_loop, leaving)):
        return None
    for op in leaving:
        op._add_control_input(graph.request.checked)

    def warm_up(session: Session) -> None:
        for fetches, fed in runs:
            values = [no_pushes.get(tensor, _any_value(tensor)) for tensor in fed]
            with suppress(tf1.errors.OpError):
                session.calling(fetches, fed)(*values)
                raise AssertionError("a run that is no push has ended well")

    return warm_up


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
