"""What every job on embedding tables has in common: how large they are, their ids and labels, and what updates them.

Needs NumPy alone, for peers in environments of their own (peer_environment.py).  The size stands in the environment of
a process, see `Tables`.  Ids are drawn by a zipf law.
"""

from __future__ import annotations

import json
import os
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any

import numpy as np

TABLES = "BENCHMARK_TABLES"
BATCHES = 8  # that are drawn and repeated
ZIPF = 1.2
HIDDEN = 64
INITIAL = 0.05  # the largest initial value of a table
LEARNING_RATE = 0.05
INITIAL_ACCUMULATOR = 0.1  # of Adagrad


@dataclass(frozen=True)
class Tables:
    """count tables of rows x width; ids: that an example has of each table, above 1 by embedding_lookup_sparse.

    optimizer: of embedding_tables.OPTIMIZERS.  parts: of each table, for peers that cut tables by a partitioner.
    fused: one variable for all tables, and one lookup, as by hand.
    """

    count: int
    rows: int
    width: int
    ids: int = 1
    _: KW_ONLY
    optimizer: str = "adagrad"
    parts: int = 1
    fused: bool = False

    def __str__(self) -> str:
        several = f", {self.ids} ids each an example" if self.ids > 1 else ""
        tables = "1 table" if self.count == 1 else f"{self.count} tables"
        return f"{tables} of {self.rows} x {self.width}{several}, {self.optimizer}"

    def environment(self) -> dict[str, str]:
        """Of a process that makes the model so."""
        return {TABLES: json.dumps(asdict(self))}


def here() -> Tables:
    """As this process's environment says."""
    return Tables(**json.loads(os.environ[TABLES]))


def drawn(tables: Tables, batch_size: int, worker: int) -> tuple[Any, Any]:
    """All batches of a worker, one after the other: ids as `drawn_ids`, labels float32 [BATCHES x batch_size]."""
    random = np.random.RandomState(worker)
    ids = drawn_ids(tables, batch_size, random)
    return ids, random.uniform(size=len(ids)).astype("float32")


def drawn_ids(tables: Tables, batch_size: int, random: np.random.RandomState) -> Any:
    """Of BATCHES batches, int64 [BATCHES x batch_size, tables, ids an example]."""
    shape = (BATCHES * batch_size, tables.count, tables.ids)
    return np.minimum(random.zipf(ZIPF, shape) - 1, tables.rows - 1).astype("int64")


def parameters(tables: Tables) -> dict[str, Any]:
    """Initial values by name, the same in every process: for models that are compared step by step."""
    random = np.random.RandomState(0)
    table = (tables.rows, tables.width)
    values = {f"table_{number}": random.uniform(-INITIAL, INITIAL, table) for number in range(tables.count)}
    values["kernel"] = random.uniform(-0.2, 0.2, (tables.count * tables.width, HIDDEN))
    values["head"] = random.uniform(-0.2, 0.2, (HIDDEN, 1))
    return {name: value.astype("float32") for name, value in values.items()}
