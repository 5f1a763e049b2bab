"""Dynamic tables in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.members.messages import RowCounts
from psruntime.errors import CheckpointError
from psruntime.graph.base.errors import first_line
from psruntime.graph.base.literal_paths import readable
from psruntime.graph.base.types import Array
from psruntime.graph.dynamic.id_sets import NO_ID

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
