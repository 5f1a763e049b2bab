"""Sets of ids on a ps, and as a checkpoint has them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.members.messages import RowCounts
from psruntime.core.plan.buckets import WAYS
from psruntime.errors import CheckpointError
from psruntime.graph.base.checkpoint_reader import readable
from psruntime.graph.base.errors import first_line
from psruntime.graph.base.types import Array, Op, Tensor, Variable
from psruntime.graph.buckets.bucket_store import ps_variable

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
        order = order_in_set(sets)
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


def order_in_set(sets: Tensor) -> Tensor:
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
