"""`psruntime.embedding`: embeddings of ids without a vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.core.plan.buckets import WAYS, DynamicRows
from psruntime.errors import UsageError
from psruntime.graph.base.graphs import as_on_worker_0
from psruntime.graph.base.types import Array, DType, Tensor, Variable
from psruntime.graph.embedding.dynamic_table import FOR_EVER, NO_ID, DynamicTable, IdSets, initial_rows, note, sets_of
from psruntime.graph.embedding.id_rows import looked_up

SMALL = 0.05  # largest initial entry by default, as in tf.keras.layers.Embedding
COMBINERS = ("sum", "mean", "sqrtn")
HASHES = (1 << 63) - 1  # of strings


def embedding(
    ids: Tensor | Array,
    name: str,
    width: int,
    *,
    capacity: int,
    combiner: str | None = None,
    admit_after: int = 1,
    expire_after_steps: int = 0,
    initializer: Any = None,
    dtype: DType = tf1.float32,
) -> Tensor:
    """The embeddings of any ids, without a vocabulary and without collisions, from the dynamic table `name`.

    An id gets a row of its own when it is trained first, or, with `admit_after`, for the n-th time.  Until then it
    reads its initial row, and no update changes it.  When there is no room the least recently used id loses its row,
    and its training with it.  All rows are on the ps, spread evenly; a worker has those of its batch.

    Call it in model_fn, outside of loops and branches.  Two calls with the same name, in the same variable scope, read
    the same table and need the same arguments.

    Args:
        ids: int32, int64 (but for -2^63) or string tensor of any shape, or a SparseTensor or RaggedTensor of rank 2.
            A string stands for its hash of 63 bits: of 10^8 strings two are the same with a chance of 1 in 2,000.
        name: of the variable.
        width: entries of an embedding.
        capacity: rows of the table, over all ps.  They are in sets of 32, and the hash of an id selects its set: when
            that is full, its least recently used id loses its row.  So of as many ids as 90 % of the capacity 3 %
            have no row.
        combiner: "sum", "mean" or "sqrtn" of the embeddings of an example's ids, which are those along the last axis;
            an example without ids gets zeros.  None: every id has its own.
        admit_after: steps in which an id has to occur, from 1, before it gets a row; in mode sync rounds.
        expire_after_steps: steps without an id after which its row is freed; 0: it is kept.
        initializer: of a row: a number, or zeros_, ones_, constant_, random_uniform_, random_normal_ or
            truncated_normal_initializer of tf.compat.v1; by default uniform in [-0.05, 0.05).  It is a function of
            the graph's seed (tf.set_random_seed), the table's name and the id: the same on any number of ps.
        dtype: of the embeddings.

    Returns:
        ids.shape + [width]; with a combiner ids.shape[:-1] + [width].

    Raises:
        UsageError: an argument is not one of these.
    """
    _check(name, width, capacity, combiner, admit_after, expire_after_steps)
    given = tf1.random_uniform_initializer(-SMALL, SMALL) if initializer is None else initializer
    if tf1.get_variable_scope().constraint is not None:
        raise UsageError(f"dynamic table {name}: the variable scope has a constraint, and its rows can have none")
    with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE) as scope:
        scope.set_partitioner(None)
        variable = tf1.get_variable(
            name, [-(-capacity // WAYS), WAYS, width], dtype, initializer=tf1.zeros_initializer(), use_resource=True
        )
    table = variable.op.name
    with as_on_worker_0():
        initial = initial_rows(given, table, tf1.get_default_graph().seed)
    settings = DynamicTable(table, DynamicRows(admit_after, expire_after_steps), initial)
    note(settings)

    def look_up(of: Tensor) -> Tensor:
        return _rows(variable, _numbered(of, table), settings, name)

    if combiner is None:
        if not isinstance(ids, tf1.SparseTensor | tf.RaggedTensor):
            return look_up(tf1.convert_to_tensor(ids))
        raise UsageError(f"dynamic table {table}: the ids are sparse or ragged; give combiner: {', '.join(COMBINERS)}")
    return _combined(look_up, ids, combiner, table)


def _check(
    name: str, width: int, capacity: int, combiner: str | None, admit_after: int, expire_after_steps: int
) -> None:
    numbers = {"width": (width, 1), "capacity": (capacity, 1), "admit_after": (admit_after, 1)}
    numbers["expire_after_steps"] = (expire_after_steps, 0)
    for what, (number, least) in numbers.items():
        if isinstance(number, bool) or not isinstance(number, Integral) or number < least:
            raise UsageError(f"dynamic table {name}: {what} must be a whole number from {least}, got {number!r}")
    if combiner is not None and combiner not in COMBINERS:
        raise UsageError(f"dynamic table {name}: combiner must be one of {', '.join(COMBINERS)}, got {combiner!r}")


def _rows(variable: Variable, ids: Tensor, table: DynamicTable, name: str) -> Tensor:
    """int64 ids of any shape -> ids.shape + [width]."""
    if hasattr(variable, "gradient_source"):
        return variable.sparse_read(ids)
    if hasattr(variable, "is_recorded"):  # the model is built to record its variables; any row will do
        return variable.sparse_read(tf1.zeros_like(ids))[..., 0, :]
    return _rows_here(variable, ids, table, name)


def _rows_here(variable: Variable, ids: Tensor, table: DynamicTable, name: str) -> Tensor:
    """The rows in plain TensorFlow: of variables of this process, which a checkpoint can be restored into.  No id gets
    a row here."""

    def kept(suffix: str, shape: list[int], value: int) -> Variable:
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
            initial = tf1.constant_initializer(value)
            return tf1.get_variable(f"{name}/{suffix}", shape, tf1.int64, initial, trainable=False, use_resource=True)

    sets, width = variable.shape.as_list()[0], variable.shape.as_list()[-1]
    of_ids, idle = kept("ids", [sets, WAYS], NO_ID), kept("idle", [sets, WAYS], 0)
    flat = tf1.reshape(ids, [-1])
    rows = looked_up(
        IdSets(of_ids, idle, 0), flat, sets_of(flat, sets), variable.gather_nd,
        lambda found: idle.gather_nd(found.places) <= (table.rows.expire_after or FOR_EVER),
        lambda missing: table.initial.of(missing, [width], variable.dtype.base_dtype),
    )  # fmt: skip
    found = tf1.reshape(rows, tf1.concat([tf1.shape(ids), [width]], axis=0))
    found.set_shape(ids.shape.concatenate([width]))
    return found


def _numbered(ids: Tensor, table: str) -> Tensor:
    """The ids as int64."""
    if ids.dtype == tf1.string:
        return tf1.strings.to_hash_bucket_fast(ids, HASHES)
    if ids.dtype not in (tf1.int32, tf1.int64):
        raise UsageError(f"dynamic table {table}: ids must be int32, int64 or string, got {ids.dtype.name}")
    return tf1.cast(ids, tf1.int64)


def _combined(look_up: Callable[[Tensor], Tensor], ids: Tensor, combiner: str, table: str) -> Tensor:
    if isinstance(ids, tf1.SparseTensor):
        flat, examples, count = ids.values, ids.indices[:, 0], ids.dense_shape[0]
        shape = ids.shape[:1]
    elif isinstance(ids, tf.RaggedTensor):
        flat, examples, count = ids.values, ids.value_rowids(), ids.nrows()
        shape = ids.shape[:1]
    else:
        ids = tf1.convert_to_tensor(ids)
        rows = look_up(ids)
        size = tf1.cast(tf1.shape(ids)[-1], rows.dtype)
        return _scaled(tf1.reduce_sum(rows, axis=-2), tf1.maximum(size, 1), combiner)
    if ids.shape.rank != 2:
        raise UsageError(f"dynamic table {table}: sparse and ragged ids must be of rank 2, a list of ids an example")
    rows = look_up(flat)
    sums = tf1.math.unsorted_segment_sum(rows, examples, count)
    sizes = tf1.math.unsorted_segment_sum(tf1.ones_like(rows[:, :1]), examples, count)
    combined = _scaled(sums, tf1.maximum(sizes, 1), combiner)
    combined.set_shape(shape.concatenate(rows.shape[1:]))
    return combined


def _scaled(sums: Tensor, sizes: Tensor, combiner: str) -> Tensor:
    if combiner == "sum":
        return sums
    return sums / (sizes if combiner == "mean" else tf1.sqrt(sizes))
