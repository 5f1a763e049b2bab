"""Steps per second of async training, of all workers together: ours and stock TensorFlow's.

    python -m benchmarks.async_steps [--runs 3] [--seconds 10] [--variables 160] [--bytes 40000,1000000]
                                     [--ps 1,2] [--workers 1,2] [--plan packed] [--quick] [--json]

The same model, data, batch size and optimizer (Adam) on this machine, for every size with every number of ps and of
workers; the runs alternate.  Steps count from the moment at which every worker has made one, for so many seconds.

With each comes what a step of one worker moved: bytes in both directions, as the kernel counts them for its sockets,
and tensors between it and the ps, as TensorFlow cut the graph of its step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks import layer_stack
from benchmarks.command_line import Progress, parser_of, print_result
from benchmarks.figures import compared
from benchmarks.processes import Processes, free_addresses, processes
from benchmarks.step_times import rate, step_bytes, step_tensors, step_times
from psruntime.observe.tables import bytes_text

BATCH_SIZE = 32
START_S = 300.0  # from the start to the first step of the last worker
WARM_UP_S = 2.0
LEAST_LINES = 3
QUICK = {"runs": 1, "seconds": 4.0, "bytes": "1000000", "ps": "1", "workers": "1"}


@dataclass(frozen=True)
class Workload:
    """total_bytes: of all variables, about.  seconds: that are measured."""

    variables: int
    total_bytes: int
    ps: int
    workers: int
    seconds: float
    plan: str

    def __str__(self) -> str:
        held = layer_stack.held_bytes(self.variables, self.total_bytes)
        return (
            f"async: {self.variables} dense variables of {held} bytes together, Adam, batches of {BATCH_SIZE}, "
            f"{self.ps} ps, {self.workers} workers"
        )

    @property
    def environment(self) -> dict[str, str]:
        return {layer_stack.VARIABLES: str(self.variables), layer_stack.BYTES: str(self.total_bytes)}


@dataclass(frozen=True)
class Measured:
    """rate: steps/s of all workers.  step_bytes, step_tensors: of a worker's step, the mean of them; None: unknown."""

    rate: float
    step_bytes: float | None
    step_tensors: float | None

    def __str__(self) -> str:
        return f"{self.rate:.1f} steps/s{moved_text(self.step_bytes, self.step_tensors)}"


def ours(work: Workload) -> Measured:
    """One run.

    Raises:
        LateError: a process failed, or hangs.
    """
    with processes(work.environment) as started:
        job = ["--ps", str(work.ps), "--min-workers", str(work.workers), "--plan", work.plan]
        first = started.start("ps-0", "psruntime.ps", "--index", "0", "--coordinator", "127.0.0.1:0", *job)
        coordinator = ["--coordinator", started.line_with(first, "READY coordinator").split()[3]]
        for i in range(1, work.ps):
            started.start(f"ps-{i}", "psruntime.ps", "--index", str(i), *coordinator)
        model = ["--model", layer_stack.__name__, "--batch-size", str(BATCH_SIZE)]
        logs = [
            started.start(f"worker-{i}", "psruntime.worker", "--index", str(i), *coordinator, *model)
            for i in range(work.workers)
        ]
        return measured(started, logs, work)


def stock(work: Workload) -> Measured:
    """One run.

    Raises:
        LateError: a process failed, or hangs.
    """
    addresses = free_addresses(work.ps + work.workers)
    ps, workers = ",".join(addresses[: work.ps]), ",".join(addresses[work.ps :])
    with processes(work.environment) as started:
        cluster = ["--mode", "async", "--ps", ps, "--workers", workers, "--batch-size", str(BATCH_SIZE)]
        command = ["benchmarks.stock_layers", *cluster, "--role"]
        for i in range(work.ps):
            started.start(f"ps-{i}", *command, "ps", "--index", str(i))
        logs = []
        for i in range(work.workers):
            logs.append(started.start(f"worker-{i}", *command, "worker", "--index", str(i)))
            if i == 0:
                started.wait_for("the variables", lambda: step_times(logs[0]) or None, START_S)
        return measured(started, logs, work)


def measured(started: Processes, logs: list[Path], work: Workload) -> Measured:
    """The sum of the workers' rates, and the means of what their steps move, once all of them train."""
    started.wait_for("every worker's first step", lambda: all(map(step_times, logs)) or None, START_S)
    since_s = time.time() + WARM_UP_S

    def is_over() -> bool | None:
        lines_since = [[t for _, t in step_times(log) if t >= since_s] for log in logs]
        enough = all(len(times) >= LEAST_LINES for times in lines_since)
        return (enough and time.time() >= since_s + work.seconds) or None

    started.wait_for("enough steps", is_over, START_S)
    until_s = time.time()
    return Measured(
        sum(rate(step_times(log), since_s, until_s) for log in logs),
        mean_of([step_bytes(log, since_s, until_s) for log in logs]),
        mean_of([step_tensors(log) for log in logs]),
    )


def mean_of(values: Sequence[float | None]) -> float | None:
    """None if one is not known."""
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(values) else None


def measure(workloads: list[Workload], runs: int, say: Progress) -> dict[str, Any]:
    """One result for each workload, under "each"."""
    each = []
    for work in workloads:
        pairs = []
        for run in range(runs):
            pairs.append((ours(work), stock(work)))
            say(f"{work}: run {run + 1} of {runs}: ours {pairs[-1][0]}; stock {pairs[-1][1]}")
        sides = dict(zip(("ours", "peer"), zip(*pairs, strict=True), strict=True))
        rates = {name: [run.rate for run in side] for name, side in sides.items()}
        each.append({
            "workload": str(work),
            "unit": "steps/s",
            **compared(rates["ours"], rates["peer"], [a.rate / b.rate for a, b in pairs]),
            "step_bytes": {name: mean_of([run.step_bytes for run in side]) for name, side in sides.items()},
            "step_tensors": {name: mean_of([run.step_tensors for run in side]) for name, side in sides.items()},
        })  # fmt: skip
    return each[0] if len(each) == 1 else {"workload": "async training", "each": each}


def text_of(result: dict[str, Any]) -> str:
    return "\n".join(map(line_of, result.get("each", [result])))


def line_of(result: dict[str, Any]) -> str:
    spread = {name: f"{low:.1f} to {high:.1f}" for name, (low, high) in result["spread"].items()}
    moved = {name: moved_text(result["step_bytes"][name], result["step_tensors"][name]) for name in ("ours", "peer")}
    return (
        f"{result['workload']}: ours {result['ours']:.1f} steps/s ({spread['ours']}){moved['ours']}; "
        f"stock {result['peer']:.1f} ({spread['peer']}){moved['peer']}; "
        f"ratio {result['ratio']:.2f} ({spread['ratio']}), {result['runs']} runs"
    )


def moved_text(step_bytes: float | None, step_tensors: float | None) -> str:
    moved = "unknown bytes" if step_bytes is None else bytes_text(step_bytes)
    tensors = "unknown" if step_tensors is None else f"{step_tensors:.0f}"
    return f", {moved} in {tensors} tensors a step"


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = parser_of(__doc__, f"under 60 s, with {QUICK} whatever else is given")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="that are measured in each run")
    parser.add_argument("--variables", type=int, default=160)
    parser.add_argument("--bytes", default="40000,1000000,10000000,100000000", help="of all variables together")
    parser.add_argument("--ps", default="1,2")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--plan", default="packed", help="of ours")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)

    def measured_all(say: Progress) -> dict[str, Any]:
        grid = product(numbers(arguments.bytes), numbers(arguments.ps), numbers(arguments.workers))
        workloads = [
            Workload(arguments.variables, size, ps, workers, arguments.seconds, arguments.plan)
            for size, ps, workers in grid
        ]
        return measure(workloads, arguments.runs, say)

    print_result(arguments, measured_all, text_of)


if __name__ == "__main__":
    main()
