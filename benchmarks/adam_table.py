"""Examples per second with a large table under LazyAdam, beside AdamOptimizer under psruntime and in stock TensorFlow.

    python -m benchmarks.adam_table [--rows 1000000] [--width 16] [--ids 1] [--ps 1] [--workers 1] [--batch-size 1024]
                                    [--runs 3] [--seconds 10] [--quick] [--json]

The model is benchmarks/embedding_tables.py with a single table, ids by a zipf law, in mode async; stock has the table
cut over the ps by a partitioner.  The runs alternate, and count from the moment at which every worker has made a step.
Beside the examples stand milliseconds of the processor for each step, of its worker and of all ps.

The bytes that an update touches are not measured but computed: the table and its two slots are read and written, of
AdamOptimizer all rows, of LazyAdam the different rows of a batch, which are counted in the batches of worker 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.command_line import Progress, parser_of, print_result
from benchmarks.table_data import BATCHES, Tables, drawn_ids
from benchmarks.table_jobs import OURS, Run, TableRun, TableWork, ours, ours_as_named, stock
from benchmarks.tables import beside, result_of, text_of_workload
from psruntime.observe.render import bytes_text

QUICK = {"runs": 1, "seconds": 4.0}
MOVED = 2 * 3 * 4  # bytes of an entry: read and written, of the table and its two slots, float32
RUNS: dict[str, Run] = {OURS: ours, "AdamOptimizer": ours_as_named, "stock AdamOptimizer": stock}


def measure(work: TableWork, runs: int, seconds: float, say: Progress) -> dict[str, Any]:
    """work: under Adam.  One result for each peer, under "each"."""
    found: dict[str, list[TableRun]] = {name: [] for name in RUNS}
    for run in range(runs):
        for name, of_name in found.items():
            of_name.append(RUNS[name](work, seconds))
            say(f"{work}: run {run + 1} of {runs}: {name}: {of_name[-1]}")
    rows, mine = unique_rows(work.tables, work.batch_size), found.pop(OURS)
    return {
        "workload": str(work),
        "each": [result_of(work, name, beside(mine, theirs), runs) for name, theirs in found.items()],
        "unique_rows": rows,
        "touched_bytes": {
            "LazyAdam": rows * work.tables.width * MOVED,
            "AdamOptimizer": work.tables.rows * work.tables.width * MOVED,
        },
    }


def unique_rows(tables: Tables, batch_size: int) -> float:
    """Different rows in a batch of worker 0, the mean over its batches."""
    batches = np.split(drawn_ids(tables, batch_size, np.random.RandomState(0)), BATCHES)
    return float(np.mean([np.unique(batch).size for batch in batches]))


def text_of(result: dict[str, Any]) -> str:
    lazy, adam = (result["touched_bytes"][name] for name in ("LazyAdam", "AdamOptimizer"))
    touched = (
        f"  an update touches (computed of the shapes and of {result['unique_rows']:.0f} different rows in a batch): "
        f"LazyAdam {bytes_text(lazy)}, AdamOptimizer {bytes_text(adam)}, {adam / lazy:.0f} times as much"
    )
    return "\n".join([text_of_workload(result["workload"], result["each"]), touched])


def main() -> None:
    parser = parser_of(__doc__, f"under 60 s, with {QUICK} whatever else is given")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--ids", type=int, default=Tables.ids, help="that an example has")
    parser.add_argument("--ps", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="that are measured in each run")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    tables = Tables(1, arguments.rows, arguments.width, arguments.ids, optimizer="adam")
    work = TableWork(tables, "async", arguments.ps, arguments.workers, arguments.batch_size)
    print_result(arguments, lambda say: measure(work, arguments.runs, arguments.seconds, say), text_of)


if __name__ == "__main__":
    main()
