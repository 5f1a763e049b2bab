"""The lookups of a step in table groups, put together: each id and each row travels once, in a message a group and ps.

A lookup gives model_fn its tensor at once; its source is connected when model_fn has ended and all lookups are known.
Lookups whose ids depend on the rows of others run after these: they have a higher level.  A lookup that the step does
not need, or whose ids are not of its batch, is fetched by itself: to run it does not run the others.

A variable is joined with others if the model only looks up rows of it, but in no loop, branch or function, where the
rows have to be there at once; nor if the model itself takes gradients with respect to it, which are taken of the
variable, not of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.table_groups import GroupedTable, TableGroup, TableId, group_row, ps_of
from psruntime.graph.base.graphs import Use, ancestors
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import Graph, Op, Tensor, Variable
from psruntime.graph.embedding.table_reader import Fetched, GroupReader, LookupRequest, uncolocated

_NOTED = "PsruntimeNotedLookup"
_DIFFERENTIATED = "psruntime/differentiated_lookups"  # a collection of names


class LookupNotes:
    """Notes the lookups of the variables that it watches, in the current graph."""

    def __init__(self) -> None:
        self._noted: dict[str, str] = {}  # operation that reads rows -> the one that passes them on

    def watch(self, variable: Variable) -> None:
        """Starts to note lookups of the variable, which must not have been looked up yet."""
        if hasattr(variable, "sparse_read"):
            variable.sparse_read = self._noting(variable.sparse_read)

    def are_all(self, uses: Iterable[Use]) -> bool:
        """Whether all uses of a variable are lookups that can be joined with others."""
        differentiated = set(tf1.get_collection(_DIFFERENTIATED))
        return all(use.operation in self._noted and self._noted[use.operation] not in differentiated for use in uses)

    def _noting(self, sparse_read: Callable[..., Tensor]) -> Callable[..., Tensor]:
        graph = tf1.get_default_graph()

        def read(*args: Any, **kwargs: Any) -> Tensor:
            rows = sparse_read(*args, **kwargs)
            if not _is_outermost(graph):
                return rows
            with graph.gradient_override_map({"Identity": _NOTED}):
                passed_on = tf1.identity(rows)
            self._noted[_gather_of(rows.op).name] = passed_on.op.name
            return passed_on

        return read


def _is_outermost(graph: Graph) -> bool:
    """Whether operations that are made now are of this graph, and neither in a loop nor in a branch of it."""
    now = tf1.get_default_graph()
    return now is graph and now._get_control_flow_context() is None


def _gather_of(op: Op) -> Op:
    while op.type != "ResourceGather":
        op = op.inputs[0].op
    return op


@tf1.RegisterGradient(_NOTED)  # type: ignore[untyped-decorator]
def _note(operation: Op, gradient: Tensor) -> Tensor:
    """Called when a gradient is taken with respect to the variable that the rows were read from."""
    operation.graph.add_to_collection(_DIFFERENTIATED, operation.name)
    return gradient


@dataclass(frozen=True, eq=False)
class _Lookup:
    """result: identity of a tensor that is connected later."""

    group: GroupReader
    request: LookupRequest
    result: Tensor


class TableLookups:
    """The table groups of a model as worker device `worker` reads them, in the current graph.

    All reads but lookups outside of loops and branches are through the handles.
    """

    def __init__(self, readers: Sequence[GroupReader], worker: str) -> None:
        self._graph = tf1.get_default_graph()
        self._worker = worker
        self._readers = {reader.group.name: reader for reader in readers}
        self._lookups: list[_Lookup] = []
        self._is_connected = False

    def reads(self) -> dict[str, GroupedTableRead]:
        """Table -> how the model reads it."""
        return {
            table.name: GroupedTableRead(self, reader, table)
            for reader in self._readers.values()
            for table in reader.group.tables
        }

    def rows(self, reader: GroupReader, table: GroupedTable, ids: Tensor) -> Tensor:
        """Integer ids of any shape -> ids.shape + row shape; in loops, branches and functions it is fetched there."""
        if self._is_connected or not _is_outermost(self._graph):
            reader.require_outermost(table)
            return reader.fetch([LookupRequest(table, ids, reader.check(table, ids))]).results[0]
        with tf1.device(self._worker):
            shape = ids.shape.concatenate(reader.row_shape)
            result = tf1.identity(tf1.placeholder(reader.dtype, shape, name="to_be_connected"))
        with tf1.control_dependencies(None):  # whatever the result waits for, the fetch waits for the ids alone
            in_range = reader.check(table, ids)
        self._lookups.append(_Lookup(reader, LookupRequest(table, ids, in_range), result))
        return result

    def join(self, step: Iterable[Tensor | Op], batch: Iterable[Tensor]) -> None:
        """Fetches the rows of all lookups so far; together those of one level and group that `step` needs and whose
        ids depend on `batch` alone.

        step: tensors and operations.  batch: placeholders.
        """
        self._is_connected = True
        order = _Order(self._lookups, {tensor.op for tensor in batch})
        needed = order.needed_by(step)
        together = [lookup for lookup in self._lookups if lookup in needed and order.is_of_batch(lookup)]
        for lookup in self._lookups:
            if lookup not in together:
                self._fetch([lookup])
        for level in range(max(map(order.level, together), default=-1) + 1):
            for reader in self._readers.values():
                own = [lookup for lookup in together if lookup.group is reader and order.level(lookup) == level]
                if own:
                    self._fetch(own)

    def _fetch(self, lookups: list[_Lookup]) -> None:
        """Feeds the results of lookups of one group."""
        reader = lookups[0].group
        fetched = reader.fetch([lookup.request for lookup in lookups])
        for lookup, rows in zip(lookups, fetched.results, strict=True):
            lookup.result.op._update_input(0, rows)
        reader.fetched.append(fetched._replace(results=[lookup.result for lookup in lookups]))

    def fetched(self, group: TableGroup) -> list[Fetched]:
        """The fetches of the lookups outside of loops and branches, level by level."""
        return self._readers[group.name].fetched

    def handles(self, group: TableGroup) -> list[Tensor]:
        """The handle on every ps, resource [], for all other reads."""
        return self._readers[group.name].handles

    @property
    def sources(self) -> list[Tensor]:
        """The handles on the ps that are read, resource []."""
        return [handle for reader in self._readers.values() for handle in reader.handles]


class GroupedTableRead:
    """A table of a group, see VariableRead."""

    def __init__(self, lookups: TableLookups, reader: GroupReader, table: GroupedTable) -> None:
        self._lookups, self._reader, self._table = lookups, reader, table
        first_ps = ps_of(group_row(TableId(0), table.offset), reader.group.num_ps)
        handle_device = ps_device(first_ps)
        self.handle_device: str | None = handle_device
        with tf1.name_scope(f"table/{table.name}"), uncolocated():
            with tf1.device(handle_device):
                self.source = tf1.identity(reader.handles[first_ps])
            self.value = reader.whole(table, self.source)

    def sparse_read(self, indices: Tensor, name: str | None = None) -> Tensor:
        with tf1.name_scope(name, "Lookup"), uncolocated():
            return self._lookups.rows(self._reader, self._table, tf1.convert_to_tensor(indices))

    def gather_nd(self, indices: Tensor, name: str | None = None) -> Tensor:
        with tf1.name_scope(name, "Lookup"), uncolocated():
            indices = tf1.convert_to_tensor(indices)
            rows = self._lookups.rows(self._reader, self._table, indices[..., 0])
            depth, rank = indices.shape.as_list()[-1], indices.shape.rank
            return rows if depth == 1 else tf1.gather_nd(rows, indices[..., 1:], batch_dims=rank - 1)


class _Order:
    """Which lookups have to come before which, and which depend on the batch alone.  fed: operations of the batch."""

    def __init__(self, lookups: Sequence[_Lookup], fed: set[Op]) -> None:
        self._of_result = {lookup.result.op: lookup for lookup in lookups}
        self._levels: dict[_Lookup, int] = {}
        self._others: set[_Lookup] = set()  # that depend on something else than the batch
        for lookup in lookups:  # one comes after those that its ids depend on
            operations, before = self._before([lookup.request.ids])
            self._levels[lookup] = max((self._levels[each] + 1 for each in before), default=0)
            if before & self._others or any(op.type == "Placeholder" and op not in fed for op in operations):
                self._others.add(lookup)

    def level(self, lookup: _Lookup) -> int:
        """0, or one more than the highest level of the lookups whose rows its ids depend on."""
        return self._levels[lookup]

    def is_of_batch(self, lookup: _Lookup) -> bool:
        """Whether its ids can be computed from the batch."""
        return lookup not in self._others

    def needed_by(self, targets: Iterable[Tensor | Op]) -> set[_Lookup]:
        """All lookups that have to be made for these tensors and operations."""
        needed: set[_Lookup] = set()
        waiting = self._before(targets)[1]
        while waiting:
            needed |= waiting
            roots = [root for each in waiting for root in (each.request.ids, *each.result.op.control_inputs)]
            waiting = self._before(roots)[1] - needed
        return needed

    def _before(self, targets: Iterable[Tensor | Op]) -> tuple[set[Op], set[_Lookup]]:
        """(operations that have to run before these, back to lookups; these lookups)."""
        met: set[_Lookup] = set()

        def stops(op: Op) -> bool:
            if op in self._of_result:
                met.add(self._of_result[op])
            return op in self._of_result

        return ancestors(targets, stops), met
