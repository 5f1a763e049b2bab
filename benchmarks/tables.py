"""Examples per second of training with embedding tables: ours, TensorFlow's, and TensorFlow's with one table by hand.

    python -m benchmarks.tables [--tables 26] [--rows 100000] [--width 16] [--ids 1] [--optimizer adagrad] [--ps 1,2]
                                [--workers 1,2] [--batch-size 1024] [--peers stock,fused] [--runs 3] [--seconds 10]
                                [--quick] [--json]

The model is benchmarks/embedding_tables.py: a lookup in every table, ids by a zipf law, two dense layers.  Stock
TensorFlow between graphs has its tables cut over the ps by a partitioner, as its users do; `fused` is the same with all
tables in one variable and one lookup of unique ids, which its users have to write by hand; `strategy` is
ParameterServerStrategy.  All are async.  The runs alternate, and count from the moment at which every worker has made a
step.  Beside the examples stand milliseconds of the processor for each step, of its worker and of all ps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from benchmarks import embedding_tables
from benchmarks.command_line import Progress, numbers, parser_of, print_result, words
from benchmarks.embedding_tables import FUSED, OPTIMIZERS, PARTS, Tables
from benchmarks.figures import compared, spread_of
from benchmarks.jobs import our_job, stock_job, strategy_job
from benchmarks.measured import Measured, measured
from benchmarks.processes import processes

QUICK = {"runs": 1, "seconds": 4.0, "ps": [2], "workers": [1], "peers": ["stock"]}


@dataclass(frozen=True)
class TableWork:
    """A job on tables, see jobs.Work."""

    tables: Tables
    ps: int
    workers: int
    batch_size: int
    more: tuple[tuple[str, str], ...] = ()
    model: str = embedding_tables.__name__
    settings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.tables}, batches of {self.batch_size}, {self.ps} ps, {self.workers} workers"

    @property
    def environment(self) -> dict[str, str]:
        return {**self.tables.environment(), **dict(self.more)}


def ours(work: TableWork, seconds: float) -> Measured:
    """Raises LateError: a process failed, or hangs."""
    with processes(work.environment) as started:
        start_worker = our_job(started, work, "--min-workers", str(work.workers))
        return measured(started, [start_worker(index) for index in range(work.workers)], seconds)


def stock(work: TableWork, seconds: float) -> Measured:
    """Raises LateError: a process failed, or hangs."""
    work = replace(work, more=(*work.more, (PARTS, str(work.ps))))
    with processes(work.environment) as started:
        start_worker = stock_job(started, work)
        return measured(started, [start_worker(index) for index in range(work.workers)], seconds)


def fused(work: TableWork, seconds: float) -> Measured:
    """Raises LateError: a process failed, or hangs."""
    return stock(replace(work, more=((FUSED, "1"),)), seconds)


def strategy(work: TableWork, seconds: float) -> Measured:
    """Raises LateError: a process failed, or hangs."""
    with processes(work.environment) as started:
        return measured(started, [strategy_job(started, work)], seconds)


PEERS = {"stock": stock, "fused": fused, "strategy": strategy}


def measure(
    workloads: Sequence[TableWork], peers: Sequence[str], runs: int, seconds: float, say: Progress
) -> dict[str, Any]:
    """One result for each workload, under "each"."""
    each = []
    for work in workloads:
        found: dict[str, list[Measured]] = {name: [] for name in ("ours", *peers)}
        for run in range(runs):
            for name, of_name in found.items():
                of_name.append((ours if name == "ours" else PEERS[name])(work, seconds))
                say(f"{work}: run {run + 1} of {runs}: {name}: {of_name[-1]}")
        each.append({"workload": str(work), "unit": "examples/s", "peers": result_of(found, work.batch_size)})
    return {"workload": "embedding tables", "each": each}


def result_of(found: dict[str, list[Measured]], batch_size: int) -> dict[str, Any]:
    """Of each peer what `compared` gives, and milliseconds of the processor a step beside it."""
    mine = [run.rate * batch_size for run in found["ours"]]
    result = {}
    for name, runs in found.items():
        if name != "ours":
            theirs = [run.rate * batch_size for run in runs]
            result[name] = compared(mine, theirs, [a / b for a, b in zip(mine, theirs, strict=True)])
            result[name]["cpu_ms"] = {"ours": cpu_ms(found["ours"]), "peer": cpu_ms(runs)}
    return result


def cpu_ms(runs: Sequence[Measured]) -> dict[str, list[float]]:
    """Of every run, for a step: of its worker, and of all ps."""
    return {role: [run.cpu_ms[role] for run in runs] for role in ("worker", "ps")}


def text_of(result: dict[str, Any]) -> str:
    return "\n".join(line for each in result["each"] for line in lines_of(each))


def lines_of(result: dict[str, Any]) -> list[str]:
    lines = [result["workload"]]
    for name, of_peer in result["peers"].items():
        spread, cpu = spread_of(of_peer), {side: cpu_text(of_peer["cpu_ms"][side]) for side in ("ours", "peer")}
        lines.append(
            f"  ours {of_peer['ours']:.0f} {result['unit']} ({spread['ours']}; {cpu['ours']}); {name} "
            f"{of_peer['peer']:.0f} ({spread['peer']}; {cpu['peer']}); ratio {of_peer['ratio']:.2f} "
            f"({spread['ratio']}), {of_peer['runs']} runs"
        )
    return lines


def cpu_text(cpu: dict[str, list[float]]) -> str:
    parts = [f"{role} {min(values):.1f} to {max(values):.1f}" for role, values in cpu.items()]
    return f"processor ms a step: {', '.join(parts)}"


def main() -> None:
    parser = parser_of(__doc__, f"under 60 s, with {QUICK} whatever else is given")
    parser.add_argument("--tables", type=int, default=Tables.count)
    parser.add_argument("--rows", type=int, default=Tables.rows, help="of each table")
    parser.add_argument("--width", type=int, default=Tables.width, help="of each table")
    parser.add_argument("--ids", type=int, default=Tables.ids, help="that an example has of each table")
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default=Tables.optimizer)
    parser.add_argument("--ps", type=numbers, default="1,2")
    parser.add_argument("--workers", type=numbers, default="1,2")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--peers", type=words(PEERS), default="stock,fused")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="that are measured in each run")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    tables = Tables(arguments.tables, arguments.rows, arguments.width, arguments.ids, arguments.optimizer)
    workloads = [TableWork(tables, ps, workers, arguments.batch_size) for ps, workers in
                 product(arguments.ps, arguments.workers)]  # fmt: skip
    print_result(
        arguments,
        lambda say: measure(workloads, arguments.peers, arguments.runs, arguments.seconds, say),
        text_of,
    )


if __name__ == "__main__":
    main()
