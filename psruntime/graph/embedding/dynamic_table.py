"""A dynamic table: the set of each id, the row that an id begins with, the ids of a set, and the table in a checkpoint.

Hashes of ids are the same on every process: the last steps of splitmix64 (Steele, Lea and Flood, Fast splittable
pseudorandom number generators, OOPSLA 2014), a bijection of the numbers of 64 bits.  An initial row is a function of
the seed, the table's name and the id: so it is the same on any process, at any time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.members.messages import RowCounts
from psruntime.core.plan.buckets import WAYS, DynamicRows
from psruntime.errors import CheckpointError, UsageError
from psruntime.faults import first_line
from psruntime.graph.base.checkpoint_reader import readable
from psruntime.graph.base.graphs import DEFAULT_SEED
from psruntime.graph.base.types import Array, DType, Op, Tensor, Variable
from psruntime.graph.buckets.bucket_store import ps_variable

GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, odd: its multiples are far apart
_MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # (shift, factor)
_LAST_SHIFT = 31


def hashed(numbers: Tensor) -> Tensor:
    """int64 or uint64 -> uint64, of the same shape."""
    bits = numbers if numbers.dtype == tf1.uint64 else tf1.bitcast(numbers, tf1.uint64)
    for shift, factor in _MIXING:
        bits = _folded(bits, shift) * tf1.constant(factor, tf1.uint64)
    return _folded(bits, _LAST_SHIFT)


def sets_of(ids: Tensor, count: int) -> Tensor:
    """Which of `count` sets each id, int64 [ids], belongs to; int64 [ids]."""
    return tf1.cast(hashed(ids) % tf1.constant(count, tf1.uint64), tf1.int64)


def _folded(bits: Tensor, shift: int) -> Tensor:
    return tf1.bitwise.bitwise_xor(bits, tf1.bitwise.right_shift(bits, tf1.constant(shift, tf1.uint64)))


BITS = 24  # of a random number, as many as a float32 between 0.5 and 1 has
CUT = 2.0  # standard deviations, where tf.truncated_normal_initializer cuts
UNIFORM, NORMAL, TRUNCATED = "uniform", "normal", "truncated normal"
_RANDOM = (
    (tf1.truncated_normal_initializer, TRUNCATED, "mean", "stddev"),
    (tf1.random_normal_initializer, NORMAL, "mean", "stddev"),
    (tf1.random_uniform_initializer, UNIFORM, "minval", "maxval"),
)


@dataclass(frozen=True)
class InitialRows:
    """kind: of the distribution; empty: every entry is `first`.

    first, second: least and largest, or mean and standard deviation.  salt: of the seed and the table.
    """

    kind: str
    first: float
    second: float = 0.0
    salt: int = 0

    def of(self, ids: Tensor, row_shape: Sequence[int], dtype: DType) -> Tensor:
        """int64 [ids] -> [ids] + row_shape, on the current device."""
        shape = tf1.concat([tf1.shape(ids), tf1.constant(list(row_shape), tf1.int32)], axis=0)
        if not self.kind:
            return tf1.fill(shape, tf1.constant(self.first, dtype))
        of_ids = hashed(tf1.bitcast(ids, tf1.uint64) + tf1.constant(self.salt, tf1.uint64))
        columns = np.arange(1, prod(row_shape) + 1, dtype=np.uint64) * np.uint64(GOLDEN)  # a list would lose bits
        of_entries = hashed(of_ids[:, None] + tf1.constant(columns))
        bits = tf1.bitwise.right_shift(of_entries, tf1.constant(64 - BITS, tf1.uint64))
        uniform = (tf1.cast(tf1.bitcast(bits, tf1.int64), tf1.float32) + 0.5) * 2.0**-BITS  # above 0 and below 1
        return tf1.reshape(tf1.cast(self._distributed(uniform), dtype), shape)

    def _distributed(self, uniform: Tensor) -> Tensor:
        if self.kind == UNIFORM:
            return self.first + (self.second - self.first) * uniform
        if self.kind == TRUNCATED:
            below = math.erfc(CUT / math.sqrt(2)) / 2  # of all numbers
            uniform = below + (1 - 2 * below) * uniform
        return self.first + self.second * tf1.math.ndtri(uniform)


def initial_rows(initializer: Any, table: str, seed: int | None) -> InitialRows:
    """The rows by an initializer of TensorFlow's, an instance or a class, or by a number; `seed` is the graph's.

    Raises:
        UsageError: the initializer does not draw each entry by itself.
    """
    if isinstance(initializer, Real) and not isinstance(initializer, bool):
        return InitialRows("", float(initializer))
    given = initializer() if isinstance(initializer, type) else initializer
    config = given.get_config() if hasattr(given, "get_config") else {}
    if isinstance(given, tf1.zeros_initializer):
        return InitialRows("", 0.0)
    if isinstance(given, tf1.ones_initializer):
        return InitialRows("", 1.0)
    if isinstance(given, tf1.constant_initializer) and isinstance(config["value"], Real):
        return InitialRows("", float(config["value"]))
    for kind, name, first, second in _RANDOM:
        if isinstance(given, kind):
            seeds = [config["seed"], DEFAULT_SEED if seed is None else seed]
            text = f"{table} {seeds[0] if seeds[0] is not None else ''} {seeds[1]}"
            salt = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
            return InitialRows(
                name, float(config[first]), float(config[second] if config[second] is not None else 1.0), salt
            )
    raise UsageError(
        f"initializer of dynamic table {table} must be a number, or zeros_initializer, ones_initializer, "
        "constant_initializer of a number, random_uniform_initializer, random_normal_initializer or "
        f"truncated_normal_initializer of tf.compat.v1, got {initializer!r}"
    )


_NOTED = "psruntime/dynamic_tables"  # a collection


@dataclass(frozen=True)
class DynamicTable:
    """A table of the model, by the name of its variable.  initial: its rows before they are trained."""

    name: str
    rows: DynamicRows
    initial: InitialRows


def note(table: DynamicTable) -> None:
    """Notes the table in the current graph.

    Raises:
        UsageError: the model has noted the table with other settings.
    """
    before = noted().get(table.name)
    if before is None:
        tf1.add_to_collection(_NOTED, table)
    elif before != table:
        raise UsageError(
            f"dynamic table {table.name} is made twice, as {before} and as {table}; give both calls the same"
        )


def noted() -> dict[str, DynamicTable]:
    """The dynamic tables of the current graph, by name."""
    tables: list[DynamicTable] = tf1.get_collection(_NOTED)
    return {table.name: table for table in tables}


NO_ID = -(1 << 63)  # in a free place, and never an id
FREE, GONE = np.int64(-(1 << 62)), np.int64(1 - (1 << 62))  # before every update that may have used a row
FOR_EVER = 1 << 62
LAST_USED, IDLE = "last_used", "idle"  # names of points of time, and in a checkpoint of how long ago they are


class Lookup(NamedTuple):
    """Ids that are in the sets.  positions: int32 [found], among the requested ones, ascending.  places: int64
    [found, 2], (set, way) of each."""

    positions: Tensor
    places: Tensor


class Placed(NamedTuple):
    """Places that were freed for new ids.

    positions, places: as in Lookup, of the new ids that have one.  expired, evicted: positions of those whose place had
    an id that expired, or was the least recently used one.
    """

    positions: Tensor
    places: Tensor
    expired: Tensor
    evicted: Tensor


class IdSets:
    """The ids of some sets, and when each was last used, on the current device.

    ids, used: variables, int64 [sets, WAYS]; used[s, w] is the update of the bucket that used ids[s, w] last, by its
        own clock.
    expire_after: updates without an id after which it expires; 0: it never does.

    An id is in a place only while its row is complete: it is written last, and removed before its row changes.  So a
    read without a lock finds the rows of an id, or nothing.
    """

    def __init__(self, ids: Variable, used: Variable, expire_after: int) -> None:
        self.ids, self.used, self._expire_after = ids, used, expire_after

    @property
    def variables(self) -> list[Variable]:
        return [self.ids, self.used]

    def find(self, ids: Tensor, sets: Tensor) -> Lookup:
        """Where these ids, int64 [ids], of these sets, int64 [ids], are, also those that have expired."""
        found = tf1.where(tf1.equal(self.ids.sparse_read(sets), ids[:, None]))
        positions = tf1.cast(found[:, 0], tf1.int32)
        return Lookup(positions, tf1.stack([tf1.gather(sets, positions), found[:, 1]], axis=1))

    def still(self, ids: Tensor, found: Lookup) -> Tensor:
        """Whether these are still there, bool [found]."""
        return tf1.equal(self.ids.gather_nd(found.places), tf1.gather(ids, found.positions))

    def is_live(self, found: Lookup, clock: Tensor) -> Tensor:
        """Whether these have not expired, bool [found]."""
        if not self._expire_after:
            return tf1.ones_like(found.positions, tf1.bool)
        return clock - self.used.gather_nd(found.places) <= self._expire_after

    def use(self, places: Tensor, clock: Tensor) -> Op:
        """An operation that notes that these places, int64 [any, 2], are used now, at `clock`, int64 []."""
        return scattered(self.used, places, tf1.fill(tf1.shape(places)[:1], clock))

    def free(self, places: Tensor) -> Op:
        """An operation that removes the ids of these places, int64 [any, 2]."""
        return scattered(self.ids, places, tf1.fill(tf1.shape(places)[:1], tf1.constant(NO_ID, tf1.int64)))

    def enter(self, ids: Tensor, places: Tensor, clock: Tensor) -> Op:
        """An operation that enters ids, int64 [ids], into free places."""
        with tf1.control_dependencies([self.use(places, clock)]):
            return scattered(self.ids, places, ids)

    def make_room(self, sets: Tensor, clock: Tensor) -> Placed:
        """Frees a place for each of some new ids, of these sets; int64 [new].

        They get, in their order, the free places of the set, then the expired ones, then the least recently used ones;
        of equals the first.  Ids used in this update keep their places, so some new ids may get none.
        """
        used = self.used.sparse_read(sets)
        is_free = tf1.equal(self.ids.sparse_read(sets), NO_ID)
        is_expired = clock - used > (self._expire_after or FOR_EVER)
        rank = tf1.where(
            is_free, tf1.fill(tf1.shape(used), FREE), tf1.where(is_expired, tf1.fill(tf1.shape(used), GONE), used)
        )
        order = _order_in_set(sets)
        ways = tf1.gather(tf1.argsort(rank, axis=1, stable=True), tf1.minimum(order, WAYS - 1), batch_dims=1)
        rank = tf1.gather(rank, ways, batch_dims=1)
        has_place = tf1.logical_and(order < WAYS, tf1.not_equal(rank, clock))
        positions = tf1.where(has_place)[:, 0]
        places = tf1.stack([tf1.gather(sets, positions), tf1.cast(tf1.gather(ways, positions), tf1.int64)], axis=1)
        evicted = tf1.logical_and(has_place, rank > GONE)
        expired = tf1.logical_and(has_place, tf1.equal(rank, GONE))
        with tf1.control_dependencies([self.free(places)]):
            return Placed(tf1.cast(positions, tf1.int32), tf1.identity(places), _at(expired), _at(evicted))


def sets_on_ps(name: str, sets: int, expire_after: int) -> IdSets:
    """Sets of ids whose variables every process finds by their names."""
    ids = ps_variable(f"{name}ids", [sets, WAYS], initializer=tf1.constant_initializer(NO_ID))
    return IdSets(ids, ps_variable(f"{name}{LAST_USED}", [sets, WAYS]), expire_after)


def _order_in_set(sets: Tensor) -> Tensor:
    """For each entry, how many before it are of the same set, int32 [sets]."""
    order = tf1.argsort(sets, stable=True)
    ordered = tf1.gather(sets, order)
    number = tf1.range(tf1.size(sets)) - tf1.searchsorted(ordered, ordered)
    return tf1.gather(number, tf1.math.invert_permutation(order))


def _at(condition: Tensor) -> Tensor:
    return tf1.cast(tf1.where(condition)[:, 0], tf1.int32)


def scattered(variable: Variable, places: Tensor, values: Tensor) -> Op:
    """An operation that writes values at places, [any, 2]."""
    return tf1.raw_ops.ResourceScatterNdUpdate(ref=variable.handle, indices=places, updates=values)


_OF_IDS, _OF_SLOTS = "/ids", ("/idle", "/seen", "/counts")  # beside the table itself


@dataclass(frozen=True)
class StoredTable:
    """The dynamic table `name` in the checkpoint `path`.

    Each property reads the files: the vectors are as large as the table.
    """

    name: str
    path: str

    @cached_property
    def ids(self) -> Array:
        """The ids that have a row, int64 [ids]; of a table of strings their hashes."""
        return self._all_ids[self._is_taken]

    @property
    def vectors(self) -> Array:
        """Their embeddings, [ids, width]."""
        return self._read("")[self._is_taken]

    @property
    def seen(self) -> Array:
        """Updates that each was in, int64 [ids]."""
        return self._read("/seen")[self._is_taken]

    @property
    def idle(self) -> Array:
        """Updates of the table since each was in one, int64 [ids]."""
        return self._read("/idle")[self._is_taken]

    @property
    def counts(self) -> RowCounts:
        """The fates of the rows of gradients, and why rows were freed."""
        return RowCounts(self.name, self._all_ids.size, *map(int, self._read("/counts").sum(axis=0)))

    @cached_property
    def _all_ids(self) -> Array:
        return self._read(_OF_IDS)

    @cached_property
    def _is_taken(self) -> Array:
        return self._all_ids != NO_ID

    def _read(self, suffix: str) -> Array:
        return np.asarray(tf1.train.load_checkpoint(readable(self.path)).get_tensor(self.name + suffix))


def stored_tables(path: str) -> list[StoredTable]:
    """All dynamic tables of the checkpoint `path`, by name.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        shapes = tf1.train.load_checkpoint(readable(path)).get_variable_to_shape_map()
    except (tf1.errors.OpError, OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {first_line(error)}") from error
    names = [name.removesuffix(_OF_IDS) for name in sorted(shapes) if name.endswith(_OF_IDS)]
    return [StoredTable(n, path) for n in names if n in shapes and all(n + suffix in shapes for suffix in _OF_SLOTS)]
