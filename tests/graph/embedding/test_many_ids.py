"""Ids over 62 bits in a table of 200,000 rows: what a dictionary knows, in memory that stays.

`python -m tests.graph.embedding.test_many_ids` draws 50 million, and says what became of them; a test draws fewer.
"""

from __future__ import annotations

import resource
import time
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.graph.embedding.dynamic_table import initial_rows
from psruntime.model import Context
from tests.graph.embedding.test_dynamic_tables import assert_equal
from tests.support.dynamic_reference import DynamicReference, dynamic_model, hashed
from tests.support.local_cluster import LocalCluster, train

BATCH, IDS, CAPACITY, ADMIT_AFTER = 8, 2500, 200_000, 2
SETS = CAPACITY // 32
DRAWS, MORE = 50_000_000, 2_000_000  # on 2 ps, and then on 3
SEEDED = tf1.random_uniform_initializer(-0.01, 0.01, seed=4)
GROWTH_BYTES = 64 << 20
TOLERANCE = 1e-3  # of sums of thousands of gradients of an id in a batch, in float32, over thousands of steps


def batch(step: int) -> tuple[Any, Any]:
    """(ids int64 [BATCH, IDS], by a zipf law over 2^62; labels)."""
    random = np.random.RandomState(step)
    ids = (hashed(random.zipf(1.1, (BATCH, IDS)).astype(np.uint64)) >> np.uint64(2)).astype(np.int64)
    return ids, random.standard_normal(BATCH).astype(np.float32)


def steps_of(first: int) -> Any:
    """A model whose batches are these from `first` on."""
    model = dynamic_model(
        np.zeros([8, IDS], np.int64), np.zeros(8, np.float32), capacity=CAPACITY, admit_after=ADMIT_AFTER,
        initializer=SEEDED,
    )  # fmt: skip

    def input_fn(context: Context) -> Any:
        def draw() -> Any:
            for step in range(first, 1 << 30):
                yield batch(step)

        shapes = (tf1.TensorSpec([BATCH, IDS], tf1.int64), tf1.TensorSpec([BATCH], tf1.float32))
        return tf1.data.Dataset.from_generator(draw, output_signature=shapes).prefetch(2)

    return replace(model, input_fn=input_fn)


def play(draws: int, more: int, folder: str) -> tuple[DynamicReference, list[int]]:
    """Draws so many ids on 2 ps, and more on 3 from the checkpoint; compares with a dictionary after each.

    Returns:
        (the dictionary; bytes of memory that this process had at most, at each checkpoint on 2 ps).
    """
    known, used = DynamicReference(SETS, initial_rows(SEEDED, "table", None), ADMIT_AFTER), []
    begun, steps = 0, draws // (BATCH * IDS)

    def saved(_path: str, _global_step: int) -> None:
        used.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)

    for num_ps, count in ((2, steps), (3, more // (BATCH * IDS))):
        settings = {"checkpoint_dir": folder, "save_steps": max(1, steps // 8)}
        run = train(
            LocalCluster(num_ps), steps_of(begun), count, saved=saved if num_ps == 2 else lambda *_: None, **settings
        )
        for step in range(begun, begun + count):
            known.step(*batch(step))
        assert_equal(run.saved(), known, TOLERANCE)
        begun += count
    return known, used


@pytest.mark.long
def test_a_table_that_is_always_full_is_what_a_dictionary_is(tmp_path: Any) -> None:
    known, _ = play(10 * BATCH * IDS, 2 * BATCH * IDS, str(tmp_path))
    assert known.counts["refused"] and known.counts["admitted"]


def main() -> None:
    began_s = time.monotonic()
    with TemporaryDirectory() as folder:
        known, used = play(DRAWS, MORE, folder)
    ids = sum(len(place.rows) for place in known.sets)
    print(f"{DRAWS + MORE} draws, {ids} ids of {CAPACITY} rows: {known.counts}; {time.monotonic() - began_s:.0f} s")
    print(f"memory at most, at each checkpoint: {' '.join(f'{size / 1e6:.0f}' for size in used)} MB", flush=True)
    assert min(known.counts[name] for name in ("found", "admitted", "refused", "evicted")) > 0
    assert used[-1] - used[len(used) // 4] < GROWTH_BYTES, used


if __name__ == "__main__":
    main()
