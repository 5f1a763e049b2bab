"""What a plan is made of: variables as the model declares them, and buckets, in which they are kept on the ps."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Annotated

from psruntime.core.fields import NAME_CHARS, ExactName, Positive, anything
from psruntime.errors import UsageError

TRAINED_DTYPES = ("float16", "bfloat16", "float32", "float64")
DTYPE_BYTES = dict.fromkeys(("bool", "int8", "uint8"), 1)
DTYPE_BYTES |= dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2)
DTYPE_BYTES |= dict.fromkeys(("int32", "uint32", "float32"), 4)
DTYPE_BYTES |= dict.fromkeys(("int64", "uint64", "float64"), 8)
AGGREGATIONS = ("SUM", "MEAN", "ONLY_FIRST_REPLICA")  # as tf.VariableAggregation names them
SPARSIFIED_FROM = 4096  # entries: of fewer all are sent, since what travels with them is not less than they are
AXES = 254  # TensorFlow has no more
ENTRIES_LIMIT = 2**53  # of an axis
WAYS = 32  # rows of a set of a dynamic table; the ids of a set, 256 bytes, are read at once


@dataclass(frozen=True)
class DynamicRows:
    """How the rows of a dynamic table are given to ids.

    admit_after: updates of the table that have to name an id before it gets a row, from 1.
    expire_after: updates without an id after which its row is free, from 1; 0: it stays.
    """

    admit_after: Positive = 1
    expire_after: int = 0


@dataclass(frozen=True)
class VariableSpec:
    """A variable as the model declares it: `shape` in entries per axis, `dtype` one of DTYPE_BYTES.

    sparse: whether its gradients name the rows that they change (IndexedSlices); of one that is not trainable,
        whether it is only ever looked up by rows, and never changed.  Such a one has an axis.
    trainable: whether updates change it on the ps; its dtype is one of TRAINED_DTYPES then.
    whole: whether its updates need all of it, in its own shape.
    group: variables of one group above 0 are updated alike, entry by entry, and may share a bucket; 0: with none.
    dynamic: of a dynamic table, whose rows are given to ids as these come.  It is trainable, sparse and of a group
        then, and its shape is (sets, WAYS) + that of a row.
    aggregation: of a variable that the model changes itself, how the changes of the workers are put together on the
        ps, one of AGGREGATIONS; empty: each worker changes its own copy.  One with it is not trainable and not sparse.
    """

    name: ExactName
    shape: tuple[Annotated[int, anything], ...]
    dtype: str
    sparse: bool = False
    trainable: bool = True
    whole: bool = False
    group: int = 0
    dynamic: DynamicRows | None = None
    aggregation: str = ""

    def checked(self) -> VariableSpec:
        """Itself.  Raises UsageError if a field is wrong, or does not fit the others."""
        if len(self.shape) > AXES or any(not 0 <= n < ENTRIES_LIMIT for n in self.shape):
            raise UsageError(f"shape of {self.name} must have at most {AXES} axes of 0 to {ENTRIES_LIMIT - 1} entries")
        dtypes = TRAINED_DTYPES if self.trainable else tuple(DTYPE_BYTES)
        if self.dtype not in dtypes:
            one_of = f"must be one of {', '.join(dtypes)}, got '{self.dtype[:NAME_CHARS]}'"
            raise UsageError(f"dtype of {self.name} {one_of}")
        if self.sparse and not self.shape:
            raise UsageError(f"sparse of {self.name} must be false, it is a scalar")
        if self.dynamic and not (self.sparse and self.trainable and self.group and len(self.shape) > 1 and self.size):
            raise UsageError(f"dynamic of {self.name} must be left out, its rows cannot be given to ids")
        if self.aggregation and (self.aggregation not in AGGREGATIONS or self.trainable or self.sparse):
            raise UsageError(
                f"aggregation of {self.name} must be one of {', '.join(AGGREGATIONS)}, of a variable that is neither "
                f"trainable nor sparse, got '{self.aggregation[:NAME_CHARS]}'"
            )
        return self

    @property
    def size(self) -> int:
        """Number of entries."""
        return prod(self.shape)

    @property
    def has_bucket(self) -> bool:
        """Whether pushes change it."""
        return self.trainable or bool(self.aggregation)

    @property
    def size_bytes(self) -> int:
        return self.size * DTYPE_BYTES[self.dtype]

    def __str__(self) -> str:
        kinds = {
            " dynamic": self.dynamic is not None,
            " sparse": self.sparse,
            " not trainable": not self.trainable,
            " whole": self.whole,
            f" aggregation {self.aggregation}": bool(self.aggregation),
        }
        return f"{self.name} {self.dtype}{list(self.shape)}{''.join(kind for kind, holds in kinds.items() if holds)}"


@dataclass(frozen=True)
class Piece:
    """`size` entries of a flattened variable, from `start`, which are entries [offset, offset + size) of a bucket.

    stride: in rows of the variable; a table whose rows are spread over ps has every so manieth row in a piece.
    """

    variable: str
    start: int
    size: int
    offset: int = 0
    stride: int = 1


@dataclass(frozen=True)
class Bucket:
    """One master tensor on one ps: the pieces in their order, flat.

    own_shape: None for a flat master; else that of the master, which is a whole variable or has rows of tables.
    is_table: whether its rows are looked up on the ps.
    group: of its variables.  aggregation: of its variable.
    """

    name: str
    ps: int
    pieces: tuple[Piece, ...]
    dtype: str
    own_shape: tuple[int, ...] | None = None
    is_table: bool = False
    group: int = 0
    aggregation: str = ""

    @property
    def size(self) -> int:
        """Number of entries."""
        return sum(piece.size for piece in self.pieces) if self.own_shape is None else prod(self.own_shape)

    @property
    def master_shape(self) -> tuple[int, ...]:
        """The shape of the master and of the optimizer's slots."""
        return (self.size,) if self.own_shape is None else self.own_shape

    @property
    def size_bytes(self) -> int:
        return self.size * DTYPE_BYTES[self.dtype]

    @property
    def variable(self) -> str:
        """The first of its variables; they have one optimizer."""
        return self.pieces[0].variable

    @property
    def is_grouped(self) -> bool:
        """Whether it has rows of a table group."""
        return self.is_table and self.group > 0

    @property
    def can_be_sparsified(self) -> bool:
        """Whether a gradient may name some of its entries: they are many, and each is updated by itself."""
        by_entry = self.group > 0 and not self.is_table
        return by_entry and self.dtype in ("float32", "float64") and self.size >= SPARSIFIED_FROM

    @property
    def is_packed(self) -> bool:
        """Whether it is of several variables."""
        return len(self.pieces) > 1
