"""Examples per second of training with embedding tables: ours, TensorFlow's, and TensorFlow's fused by hand.

    python -m benchmarks.tables [--tables 26x100000x16] [--modes async] [--optimizers adagrad] [--ps 1,2]
                                [--workers 1,2] [--batch-size 1024] [--peers stock,fused] [--runs 3] [--seconds 10]
                                [--everything] [--quick] [--json]

The model is embedding_tables.py: a lookup in every table, ids by a zipf law, two dense layers.  Every combination of
tables, optimizer, mode, ps and workers is measured, in as many runs, in which ours and the peers (table_jobs.py) take
turns; it is printed when it is done.  --everything is a list of combinations that takes hours.

    stock     between graphs, its tables cut over the ps by a partitioner, as its users do
    fused     the same with all tables in one variable and one lookup of unique ids, which its users write by hand
    strategy  ParameterServerStrategy; async with Adagrad only, and left out elsewhere
    torchrec  TorchRec on the processor (torchrec_tables.py says where its model differs): workers without ps, and
              synchronous, beside mode async too; left out with Adam.  It has an environment of its own, which
              `python -m benchmarks.peer_environment torchrec` makes, and is skipped with one line without it
    tfra      between graphs with the dynamic embeddings of TensorFlow Recommenders Addons (tfra_tables.py says where
              its model differs); async only, and left out with row-wise Adagrad.  Its environment is made alike

Mode sync is SyncReplicasOptimizer's in stock.  With Adam ours has LazyAdam, which moves the rows of a step; stock has
none that does, so it moves all rows.

A run counts from the moment at which every worker has made a step.  Beside the examples stand milliseconds of the
processor for each step of a worker: of its own process, of all ps, and of all processes together.  Of ours also the
largest share that one ps had of the bytes that all ps moved, over an even one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, product
from statistics import median
from typing import Any

from benchmarks.command_line import Progress, numbers, parser_of, print_result, words
from benchmarks.embedding_tables import OPTIMIZERS
from benchmarks.figures import compared, spread_of
from benchmarks.processes import LateError
from benchmarks.table_data import Tables
from benchmarks.table_jobs import (
    LAZY,
    OURS,
    PEERS,
    RUNS,
    TableRun,
    TableWork,
    called,
    peers_of,
    with_environment,
)

MODES = ("async", "sync")
NAMED = sorted(set(OPTIMIZERS) - set(LAZY.values()))
QUICK = {"runs": 1, "seconds": 4.0, "modes": ["async"], "ps": [2], "workers": [1], "peers": ["stock"]}
EVERYTHING: dict[str, list[Any]] = {
    "tables": [
        Tables(26, 100_000, 16),
        Tables(200, 10_000, 8),
        Tables(1, 10_000_000, 32),
        Tables(26, 100_000, 16, ids=30),
    ],
    "modes": list(MODES),
    "optimizers": ["adagrad", "adam"],
    "ps": [1, 2],
    "workers": [1, 2],
    "peers": list(PEERS),
}
EVERYTHING_IS = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in EVERYTHING.items())


def measure(
    workloads: Sequence[TableWork], peers: list[str], runs: int, seconds: float, say: Progress
) -> dict[str, Any]:
    """One result for each workload and peer that made a run of it, under "each".

    Raises:
        LateError: ours failed, or hangs, or every run of every peer did.
    """
    each: list[dict[str, Any]] = []
    for work in workloads:
        found = alternated(work, [OURS, *peers_of(work, peers)], runs, seconds, say)
        mine = found.pop(OURS)
        results = [
            result_of(work, called(work, name), beside(mine, theirs), runs)
            for name, theirs in found.items()
            if any(theirs)
        ]
        if len(workloads) > 1:
            say(text_of({"each": results}))
        each += results
    if not each:
        raise LateError("no run of a peer came to its end")
    return {"workload": "embedding tables", "each": each}


def alternated(
    work: TableWork, names: list[str], runs: int, seconds: float, say: Progress
) -> dict[str, list[TableRun | None]]:
    """The runs of each; None: one of a peer that failed, or hangs.  Raises LateError if ours does."""
    found: dict[str, list[TableRun | None]] = {name: [] for name in names}
    for run in range(runs):
        for name in names:
            try:
                measured = RUNS[name](work, seconds)
            except LateError as error:
                if name == OURS:
                    raise
                found[name].append(None)
                say(f"{work}: run {run + 1} of {runs}: {name} failed: {error}")
            else:
                found[name].append(measured)
                say(f"{work}: run {run + 1} of {runs}: {name}: {measured}")
    return found


def beside(mine: Sequence[TableRun | None], theirs: Sequence[TableRun | None]) -> list[tuple[TableRun, TableRun]]:
    """The runs that both made, in the same turn."""
    return [(a, b) for a, b in zip(mine, theirs, strict=True) if a and b]


def result_of(work: TableWork, peer: str, pairs: Sequence[tuple[TableRun, TableRun]], runs: int) -> dict[str, Any]:
    """What `compared` gives of the examples/s, and under "cpu_ms" of the processor's time for a step."""
    mine, theirs = zip(*pairs, strict=True)
    rate, peer_rate = ([run.measured.rate * work.batch_size for run in side] for side in (mine, theirs))
    cpu, peer_cpu = ([sum(run.measured.cpu_ms.values()) for run in side] for side in (mine, theirs))
    shares = [run.ps_share for run in mine if run.ps_share is not None]
    return {
        "workload": str(work),
        "unit": "examples/s",
        "ours_is": OURS,
        "peer_is": peer,
        **compared(rate, peer_rate, [a / b for a, b in zip(rate, peer_rate, strict=True)]),
        "cpu_ms": {
            **compared(cpu, peer_cpu, [b / a for a, b in zip(cpu, peer_cpu, strict=True)]),
            "of_roles": {"ours": cpu_of_roles(mine), "peer": cpu_of_roles(theirs)},
        },
        "ps_share": [min(shares), max(shares)] if shares and work.ps > 1 else None,
        "peer_failed": runs - len(pairs),
    }


def cpu_of_roles(runs: Sequence[TableRun]) -> dict[str, float]:
    """Medians of milliseconds for a step of a worker: of its own process, of all ps, of a chief if there is one."""
    return {role: median(run.measured.cpu_ms[role] for run in runs) for role in runs[0].measured.cpu_ms}


def text_of(result: dict[str, Any]) -> str:
    of_each = groupby(result["each"], lambda each: str(each["workload"]))
    return "\n".join(text_of_workload(workload, list(results)) for workload, results in of_each)


def text_of_workload(workload: str, results: Sequence[dict[str, Any]]) -> str:
    lines = [workload, *(line for result in results for line in lines_of(result))]
    if share := results[0]["ps_share"]:
        lines.append(f"  ours: largest share of a ps {share[0]:.3f} to {share[1]:.3f} times an even one")
    return "\n".join(lines)


def lines_of(result: dict[str, Any]) -> list[str]:
    peer, cpu, failed = result["peer_is"], result["cpu_ms"], result["peer_failed"]
    rates, ratio = spread_of(result, digits=0), spread_of(result)["ratio"]
    cpu_ms, cpu_ratio = spread_of(cpu, digits=1), spread_of(cpu)["ratio"]
    failures = f", {failed} of {peer} failed" if failed else ""
    return [
        f"  ours beside {peer}: {result['ours']:.0f} {result['unit']} ({rates['ours']}) and {result['peer']:.0f} "
        f"({rates['peer']}), ratio {result['ratio']:.2f} ({ratio}), {result['runs']} runs{failures}",
        f"    processor ms a step: {cpu['ours']:.1f} ({cpu_ms['ours']}; {roles_text(cpu, 'ours')}) and "
        f"{cpu['peer']:.1f} ({cpu_ms['peer']}; {roles_text(cpu, 'peer')}), ratio {cpu['ratio']:.2f} ({cpu_ratio})",
    ]


def roles_text(cpu: dict[str, Any], side: str) -> str:
    return ", ".join(f"{role} {cpu_ms:.1f}" for role, cpu_ms in cpu["of_roles"][side].items())


def sizes(text: str) -> list[Tables]:
    """The type of --tables."""
    found = []
    for word in text.split(","):
        try:
            size = tuple(map(int, word.split("x")))
        except ValueError:
            size = ()
        if len(size) not in (3, 4) or min(size) < 1:
            raise argparse.ArgumentTypeError(
                f"tables x rows x width are needed, and x ids of an example if these are several, as in "
                f"26x100000x16 or 26x100000x16x30, got '{word}'"
            )
        found.append(Tables(*size))
    return found


def main() -> None:
    parser = parser_of(__doc__, f"under 60 s, with {QUICK} whatever else is given")
    parser.add_argument("--everything", action="store_true", help=f"hours: {EVERYTHING_IS}")
    parser.add_argument(
        "--tables", type=sizes, default="26x100000x16", metavar="SIZES",
        help="tables x rows x width, and x ids that an example has of each table if these are several",
    )  # fmt: skip
    parser.add_argument("--modes", type=words(MODES), default="async")
    parser.add_argument("--optimizers", type=words(NAMED), default="adagrad")
    parser.add_argument("--ps", type=numbers, default="1,2")
    parser.add_argument("--workers", type=numbers, default="1,2")
    parser.add_argument("--batch-size", type=int, default=1024, help="of each worker")
    parser.add_argument("--peers", type=words(PEERS), default="stock,fused")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="that are measured in each run")
    arguments = parser.parse_args()
    for chosen, changes in ((arguments.everything, EVERYTHING), (arguments.quick, QUICK)):
        if chosen:
            vars(arguments).update(changes)
    workloads = [
        TableWork(replace(size, optimizer=optimizer), mode, ps, workers, arguments.batch_size)
        for size, optimizer, mode, ps, workers in product(
            arguments.tables, arguments.optimizers, arguments.modes, arguments.ps, arguments.workers
        )
    ]
    peers, skipped = with_environment(arguments.peers)
    if not peers:
        raise SystemExit(f"nothing to compare with: {'; '.join(skipped)}")
    if alone := next((work for work in workloads if not peers_of(work, peers)), None):
        raise SystemExit(f"nothing to compare with: {', '.join(peers)} cannot do '{alone}'")

    def measured(say: Progress) -> dict[str, Any]:
        for line in skipped:
            say(line)
        return measure(workloads, peers, arguments.runs, arguments.seconds, say)

    print_result(arguments, measured, text_of)


if __name__ == "__main__":
    main()
