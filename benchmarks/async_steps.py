"""Steps per second of async training, of all workers together: ours and TensorFlow's.

    python -m benchmarks.async_steps [--runs 3] [--seconds 10] [--variables 160] [--bytes 40000,1000000]
                                     [--ps 1,2] [--workers 1,2] [--plan packed] [--peer stock|strategy]
                                     [--quick] [--json]

The same model, data, batch size and optimizer (Adam) on this machine, for every size with every number of ps and of
workers; the runs alternate.  The peer is stock TensorFlow's between-graph training, or ParameterServerStrategy, whose
chief is one process more.  Steps count from the moment at which every worker has made one, for so many seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import layer_stack
from benchmarks.command_line import Progress, parser_of, print_result
from benchmarks.figures import compared
from benchmarks.processes import Processes, free_addresses, processes
from benchmarks.step_times import rate, step_times

BATCH_SIZE = 32
START_S = 300.0  # from the start to the first step of the last worker
WARM_UP_S = 2.0
LEAST_LINES = 3
QUICK = {"runs": 1, "seconds": 4.0, "bytes": "1000000", "ps": "1", "workers": "1"}


@dataclass(frozen=True)
class Workload:
    """total_bytes: of all variables, about.  seconds: that are measured.  model: module, of ours and of stock's."""

    variables: int
    total_bytes: int
    ps: int
    workers: int
    seconds: float
    plan: str
    model: str = layer_stack.__name__
    batch_size: int = BATCH_SIZE

    def __str__(self) -> str:
        held = layer_stack.held_bytes(self.variables, self.total_bytes)
        return (
            f"async: {self.variables} dense variables of {held} bytes together, Adam, batches of {self.batch_size}, "
            f"{self.ps} ps, {self.workers} workers"
        )

    @property
    def environment(self) -> dict[str, str]:
        return {layer_stack.VARIABLES: str(self.variables), layer_stack.BYTES: str(self.total_bytes)}


def ours(work: Workload) -> float:
    """Steps per second.

    Raises:
        LateError: a process failed, or hangs.
    """
    with processes(work.environment) as started:
        start_worker = our_job(started, work, "--min-workers", str(work.workers))
        return measured(started, [start_worker(index) for index in range(work.workers)], work)


def our_job(started: Processes, work: Workload, *settings: str) -> Callable[[int], Path]:
    """Starts the ps; returns what starts a worker, by index, and gives its log."""
    job = ["--ps", str(work.ps), "--plan", work.plan, *settings]
    first = started.start("ps-0", "psruntime.ps", "--index", "0", "--coordinator", "127.0.0.1:0", *job)
    coordinator = ["--coordinator", started.line_with(first, "READY coordinator").split()[3]]
    for i in range(1, work.ps):
        started.start(f"ps-{i}", "psruntime.ps", "--index", str(i), *coordinator)
    model = ["--model", work.model, "--batch-size", str(work.batch_size)]

    def start_worker(index: int) -> Path:
        return started.start(f"worker-{index}", "psruntime.worker", "--index", str(index), *coordinator, *model)

    return start_worker


def stock(work: Workload) -> float:
    """Steps per second.

    Raises:
        LateError: a process failed, or hangs.
    """
    with processes(work.environment) as started:
        start_worker = stock_job(started, work)
        return measured(started, [start_worker(index) for index in range(work.workers)], work)


def stock_job(started: Processes, work: Workload) -> Callable[[int], Path]:
    """As `our_job`; starting worker 0 takes until it has made the variables."""
    addresses = free_addresses(work.ps + work.workers)
    ps, workers = ",".join(addresses[: work.ps]), ",".join(addresses[work.ps :])
    cluster = ["--mode", "async", "--ps", ps, "--workers", workers, "--batch-size", str(work.batch_size)]
    command = ["benchmarks.stock_layers", *cluster, "--model", work.model, "--role"]
    for i in range(work.ps):
        started.start(f"ps-{i}", *command, "ps", "--index", str(i))

    def start_worker(index: int) -> Path:
        log = started.start(f"worker-{index}", *command, "worker", "--index", str(index))
        if index == 0:
            started.wait_for("the variables", lambda: step_times(log) or None, START_S)
        return log

    return start_worker


def strategy(work: Workload) -> float:
    """Steps per second of ParameterServerStrategy.

    Raises:
        LateError: a process failed, or hangs.
    """
    chief, *addresses = free_addresses(1 + work.ps + work.workers)
    ps, workers = ",".join(addresses[: work.ps]), ",".join(addresses[work.ps :])
    cluster = ["--chief", chief, "--ps", ps, "--workers", workers, "--batch-size", str(work.batch_size)]
    command = ["benchmarks.strategy_layers", *cluster, "--role"]
    with processes(work.environment) as started:
        for role, count in (("ps", work.ps), ("worker", work.workers)):
            for i in range(count):
                started.start(f"{role}-{i}", *command, role, "--index", str(i))
        return measured(started, [started.start("chief", *command, "chief", "--index", "0")], work)


PEERS = {"stock": stock, "strategy": strategy}


def measured(started: Processes, logs: list[Path], work: Workload) -> float:
    """The sum of the workers' rates, once all of them train."""
    started.wait_for("every worker's first step", lambda: all(map(step_times, logs)) or None, START_S)
    since_s = time.time() + WARM_UP_S

    def is_over() -> bool | None:
        lines_since = [[t for _, t in step_times(log) if t >= since_s] for log in logs]
        enough = all(len(times) >= LEAST_LINES for times in lines_since)
        return (enough and time.time() >= since_s + work.seconds) or None

    started.wait_for("enough steps", is_over, START_S)
    until_s = time.time()
    return sum(rate(step_times(log), since_s, until_s) for log in logs)


def measure(workloads: list[Workload], peer: str, runs: int, say: Progress) -> dict[str, Any]:
    """One result for each workload, under "each"."""
    each = []
    for work in workloads:
        pairs = []
        for run in range(runs):
            pairs.append((ours(work), PEERS[peer](work)))
            say(f"{work}: run {run + 1} of {runs}: ours {pairs[-1][0]:.1f}, {peer} {pairs[-1][1]:.1f} steps/s")
        mine, theirs = zip(*pairs, strict=True)
        figures = compared(mine, theirs, [a / b for a, b in pairs])
        each.append({"workload": str(work), "peer_is": peer, "unit": "steps/s", **figures})
    return each[0] if len(each) == 1 else {"workload": "async training", "each": each}


def text_of(result: dict[str, Any]) -> str:
    return "\n".join(map(line_of, result.get("each", [result])))


def line_of(result: dict[str, Any]) -> str:
    spread = {name: f"{low:.1f} to {high:.1f}" for name, (low, high) in result["spread"].items()}
    return (
        f"{result['workload']}: ours {result['ours']:.1f} steps/s ({spread['ours']}), "
        f"{result['peer_is']} {result['peer']:.1f} ({spread['peer']}), "
        f"ratio {result['ratio']:.2f} ({spread['ratio']}), {result['runs']} runs"
    )


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main(peer: str = "stock") -> None:
    """peer: without --peer."""
    parser = parser_of(__doc__, f"under 60 s, with {QUICK} whatever else is given")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="that are measured in each run")
    parser.add_argument("--variables", type=int, default=160)
    parser.add_argument("--bytes", default="40000,1000000,10000000,100000000", help="of all variables together")
    parser.add_argument("--ps", default="1,2")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--plan", default="packed", help="of ours")
    parser.add_argument("--peer", choices=sorted(PEERS), default=peer)
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)

    def measured_all(say: Progress) -> dict[str, Any]:
        grid = product(numbers(arguments.bytes), numbers(arguments.ps), numbers(arguments.workers))
        workloads = [
            Workload(arguments.variables, size, ps, workers, arguments.seconds, arguments.plan)
            for size, ps, workers in grid
        ]
        return measure(workloads, arguments.peer, arguments.runs, say)

    print_result(arguments, measured_all, text_of)


if __name__ == "__main__":
    main()
