"""A model on pulled buckets and tables: declares the store, pulls it, and builds the user's model_fn on its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.plan.table_groups import TableGroup
from psruntime.errors import UsageError, some
from psruntime.graph.base.graphs import ancestors
from psruntime.graph.base.server import worker_device
from psruntime.graph.base.types import Op, Tensor, Variable
from psruntime.graph.buckets.bucket_store import GLOBAL_STEP, BucketStore, PlanStores
from psruntime.graph.buckets.gradient import FULL, Wire
from psruntime.graph.buckets.optimizers import groups_of, rules_of
from psruntime.graph.embedding.dynamic_table import noted
from psruntime.graph.embedding.group_lookups import TableLookups
from psruntime.graph.embedding.id_rows import DynamicReader, IdRows
from psruntime.graph.embedding.table_reader import GroupReader, TableRead
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.model import capture
from psruntime.graph.model.call import call_model_fn
from psruntime.graph.model.capture import Captured
from psruntime.graph.model.non_trainable import PsCopies, WorkerCopies
from psruntime.graph.model.spec_checks import check_spec
from psruntime.graph.model.variable_reads import (
    ChangeLog,
    PulledRead,
    VariableRead,
    pulled_changes,
    pulled_whole,
    unpacked_buckets,
)
from psruntime.graph.push.aggregation import Aggregated
from psruntime.model import TRAIN, Model, ModelSpec


@dataclass(frozen=True)
class PulledModel:
    """A model in the current graph, built on the parameters that a step pulls.

    step_read: int64 [] on the worker, the global step as the model reads it.
    logs: bucket name -> log of its changes, where only these are pulled.
    versions: bucket name -> int64 [buckets] of its section, on its ps; the global step's too.
    last: ps -> (the bucket there that is pulled last, a tensor that is on this worker then), see `begins_last`.
    reads: variable name -> how the model reads it.  lookups: of tables in groups.
    id_rows: bucket name -> the ids of its rows, of dynamic tables.
    ps_copies, worker_copies: of the variables that are not trainable.  aggregated: of those with an aggregation.
    captured: the variables that the model made in the graph.
    batch: the placeholders to feed.  examples: [], its weight.
    updates: operations to be run in every step; none in evaluation.
    """

    spec: ModelSpec
    global_step: BucketStore
    step_read: Tensor
    stores: dict[str, BucketStore]
    logs: dict[str, ChangeLog]
    versions: dict[str, Tensor]
    last: dict[int, tuple[str, Tensor]]
    reads: dict[str, VariableRead]
    lookups: TableLookups
    id_rows: dict[str, IdRows]
    ps_copies: PsCopies
    worker_copies: WorkerCopies
    aggregated: Aggregated
    captured: Captured
    batch: list[Tensor]
    examples: Tensor
    updates: list[Op]

    @property
    def pulled(self) -> list[Op]:
        """The operations that read from the ps, after which the model starts."""
        of_reads = [tensor.op for read in self.reads.values() for tensor in (read.value, read.source)]
        others = [*self.lookups.sources, *self.aggregated.sources]
        return [self.step_read.op, *of_reads, *(tensor.op for tensor in others)]

    def pull_after(self, operations: dict[str, Op]) -> None:
        """Makes the pull of each of these buckets wait for an operation on its ps, the last one's for all there.

        The edges are added to a graph that is built: the operations of an update exist only after the model is built
        on the pull.

        Raises:
            UsageError: an operation needs the pull itself.
        """
        read = ancestors(operations.values())
        if names := [name for name, version in self.versions.items() if version.op in read]:
            raise UsageError(
                f"an optimizer or a constraint reads the model's variables, in one of the buckets {some(names, 3)}; in "
                "mode sync it can use only the value and the gradient that it is given"
            )
        ps_of = {name: store.bucket.ps for name, store in [*self.stores.items(), (GLOBAL_STEP.name, self.global_step)]}
        for name, operation in operations.items():
            self.versions[name].op._add_control_input(operation)
            last, _ = self.last.get(ps_of[name], (name, None))
            if last != name:
                self.versions[last].op._add_control_input(operation)


def record_specs(model: Model, inputs: InputStream, mode: str) -> tuple[VariableSpec, ...]:
    """The model's variables, from a build in a scratch graph.

    Raises:
        UsageError: model_fn failed, or the model cannot be trained (no variable, a loss that is not a
            scalar or that no variable has a gradient of).
    """
    groups: dict[str, int] = {}  # of the trainable variables; 0: under an optimizer that may need all of it
    trained: set[str] = set()

    def build() -> ModelSpec:
        return _call(model, inputs, mode)[0]

    def sparse_of(spec: ModelSpec) -> list[str]:
        is_sparse = check_spec(spec, f"model_fn of {model.name}", mode)
        if mode == TRAIN:
            names = [v.op.name for v in tf1.trainable_variables()]
            sparse = {name: is_sparse.get(name, False) or name in noted() for name in names}
            groups.update(groups_of(sparse, rules_of(spec, f"model_fn of {model.name}")))
            trained.update(is_sparse)
        return [name for name, sparse in is_sparse.items() if sparse]

    def completed(spec: VariableSpec) -> VariableSpec:
        if not spec.trainable:
            return spec
        group = groups.get(spec.name, 0)
        if spec.dynamic and mode == TRAIN:
            _require_trainable_rows(spec, group, spec.name in recorded.looked_up)
            return replace(spec, sparse=True, group=group)
        if spec.sparse:
            return replace(spec, group=group if spec.name in recorded.looked_up else 0)
        whole = spec.whole or (mode == TRAIN and not group)
        return replace(spec, whole=whole, group=group if spec.name in trained and not whole else 0)

    recorded = capture.record(build, sparse_of)
    if not any(spec.trainable for spec in recorded.specs):
        raise UsageError(f"model_fn of {model.name} makes no trainable variable: there is nothing to train")
    return tuple(completed(spec) for spec in recorded.specs)


def _require_trainable_rows(table: VariableSpec, group: int, is_looked_up: bool) -> None:
    """Raises UsageError if the rows of a dynamic table cannot be assigned to ids."""
    if not is_looked_up:
        raise UsageError(
            f"dynamic table {table.name} is read in a loop, a branch or a function, or in another way than by "
            "psruntime.embedding (a regularizer, a summary, gradients with respect to it); call that at the outermost "
            "level of model_fn, and use its rows"
        )
    if not group:
        raise UsageError(
            f"dynamic table {table.name} needs an optimizer of which is known that it updates each row by itself: one "
            "of tf.train or psruntime.optimizers"
        )


def build_pulled_model(
    model: Model,
    inputs: InputStream,
    mode: str,
    declared: PlanStores,
    index: int,
    wire: Wire = FULL,
    begins_last: bool = False,
) -> PulledModel:
    """Builds pull and model into the current graph, the model on worker `index`.

    declared: the variables on the ps, in the same graph.
    begins_last: whether the model computes nothing before a tensor was pulled from every ps, see PulledModel.last.
    """
    plan, stores, global_step = declared.plan, declared.buckets, declared.global_step
    ps_copies = PsCopies(plan)
    logs = {name: ChangeLog(store) for name, store in stores.items() if wire.sparsifies(store.bucket)}
    changes = pulled_changes(logs.values(), index, wire)
    pulls = {name: changes.get(name) or _pulled(store, index, wire) for name, store in stores.items()}
    worker = worker_device(index)
    with tf1.device(worker):
        flat = unpacked_buckets(plan, {name: values for name, (_, values) in pulls.items()})
        id_rows = {
            bucket.name: IdRows(stores[bucket.name], g) for g in plan.groups if g.dynamic for bucket in g.buckets
        }
        lookups = TableLookups([_reader(group, pulls, id_rows, worker, wire) for group in plan.groups], worker)
        reads: dict[str, VariableRead] = {**lookups.reads()}
        for variable in plan.trained:
            name = variable.name
            if variable.sparse and name not in reads:
                reads[name] = TableRead(stores[name].bucket, pulls[name][1], worker, wire)
            elif not variable.sparse:
                reads[name] = PulledRead(tf1.reshape(flat[name], variable.shape, name=f"view/{name}"))
        for copy in plan.copies:
            if copy.is_table:
                reads[copy.name] = TableRead(copy, tf1.identity(ps_copies.variables[copy.name].handle), worker)
        aggregated = Aggregated(plan.aggregated, flat, index)
        version, count = global_step.pull()
        step = PulledRead(tf1.reshape(count, [], name="view/global_step"))
        last = _last_pulled(stores, flat, pulls, step) if begins_last else {}
        with capture.substitute(reads, step, plan.specs, aggregated.copies) as captured:
            spec, batch = _call(model, inputs, mode, [tensor for _, tensor in last.values()])
            examples = inputs.layout.examples(batch, tf1.shape) if spec.examples is None else spec.examples
            lookups.join(_step_of(spec, examples), batch)
            tf1.train.get_or_create_global_step()  # where hooks look for it
    return PulledModel(
        spec=spec,
        global_step=global_step,
        step_read=step.value,
        stores=stores,
        logs=logs,
        versions={**{name: pulled for name, (pulled, _) in pulls.items()}, GLOBAL_STEP.name: version},
        last=last,
        reads=reads,
        lookups=lookups,
        id_rows=id_rows,
        ps_copies=ps_copies,
        worker_copies=WorkerCopies(ps_copies, captured, index),
        aggregated=aggregated,
        captured=captured,
        batch=batch,
        examples=examples,
        updates=_updates(spec, batch) if mode == TRAIN else [],
    )


def _reader(
    group: TableGroup, pulls: dict[str, tuple[Tensor, Tensor]], id_rows: dict[str, IdRows], worker: str, wire: Wire
) -> GroupReader:
    handles = [pulls[bucket.name][1] for bucket in group.buckets]
    if group.dynamic:
        return DynamicReader(group, handles, worker, wire, [id_rows[bucket.name] for bucket in group.buckets])
    return GroupReader(group, handles, worker, wire)


def _pulled(store: BucketStore, index: int, wire: Wire) -> tuple[Tensor, Tensor]:
    """(version, values on the worker; of a table its handle)."""
    bucket = store.bucket
    return store.pull_handle() if bucket.is_table else pulled_whole(store, index, FULL if bucket.aggregation else wire)


def _last_pulled(
    stores: dict[str, BucketStore], flat: dict[str, Tensor], pulls: dict[str, tuple[Tensor, Tensor]], step: PulledRead
) -> dict[int, tuple[str, Tensor]]:
    """ps -> (bucket, a tensor that is here once it was pulled): the smallest that is pulled anyway, else a scalar."""
    last = {GLOBAL_STEP.ps: (GLOBAL_STEP.name, step.value)}
    by_size = sorted(stores.values(), key=lambda store: -store.bucket.size)
    for bucket in [store.bucket for store in by_size if store.bucket.is_table]:
        last[bucket.ps] = bucket.name, tf1.identity(pulls[bucket.name][0])
    for bucket in [store.bucket for store in by_size if not store.bucket.is_table]:
        last[bucket.ps] = bucket.name, tf1.identity(flat[bucket.pieces[0].variable])
    return last


def _step_of(spec: ModelSpec, examples: Tensor) -> list[Tensor | Op | Variable]:
    """The tensors and operations of the model that a step, or a pass of an evaluation, may run."""
    metrics = [tensor for metric in (spec.metrics or {}).values() for tensor in tf1.nest.flatten(metric)]
    return [spec.loss, *([examples] if isinstance(examples, tf1.Tensor) else []), *metrics, *_given_updates(spec)]


def _given_updates(spec: ModelSpec) -> Sequence[Tensor | Op | Variable]:
    return tf1.get_collection(tf1.GraphKeys.UPDATE_OPS) if spec.updates is None else spec.updates


def _updates(spec: ModelSpec, batch: list[Tensor]) -> list[Op]:
    """The operations of the spec's updates, without those that need another input than the batch.

    A Keras model that was called on tensors lists the updates for its own symbolic inputs as well.
    """
    fed = {tensor.op for tensor in batch}
    operations = [getattr(update, "op", update) for update in _given_updates(spec)]
    can_run: set[Op] = set()  # and needs nothing that is not here, so each part of the graph is walked once
    for op in operations:
        needs = ancestors([op], can_run.__contains__)
        if not any(a.type == "Placeholder" and a not in fed for a in needs):
            can_run |= needs
    return [op for op in operations if op in can_run]


def _call(model: Model, inputs: InputStream, mode: str, after: Sequence[Tensor] = ()) -> tuple[ModelSpec, list[Tensor]]:
    features, labels, batch = inputs.layout.placeholders(after)
    try:
        return call_model_fn(model, features, labels, mode), batch
    except UsageError as error:
        if "Unsuccessful at finding variable psruntime/" not in str(error):
            raise
        raise UsageError(
            f"model_fn of {model.name} reads a variable inside a function with a gradient of its own "
            "(tf.custom_gradient, tf.recompute_grad), which is not supported; give the function the variable's value() "
            "as an argument"
        ) from error
