"""Steps per second of async training, of all workers together: ours and stock TensorFlow's.

    python -m benchmarks.async_steps [--runs 3] [--seconds 10] [--variables 160] [--bytes 40000,1000000]
                                     [--ps 1,2] [--workers 1,2] [--pipeline 1,2] [--plan packed] [--quick] [--json]

The same model, data, batch size and optimizer (Adam) on this machine, for every size with every number of ps and of
workers; the runs alternate.  Steps count from the moment at which every worker has made one, for so many seconds.
Ours runs once for each pipeline.  Beside the rates stands how many tensors a step receives from another process, as
counted in the graphs that ran.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import layer_stack
from benchmarks.command_line import Progress, parser_of, print_result
from benchmarks.figures import compared
from benchmarks.processes import Processes, free_addresses, processes
from benchmarks.receives import receives_of
from benchmarks.step_times import rate, step_times

BATCH_SIZE = 32
START_S = 300.0  # from the start to the first step of the last worker
WARM_UP_S = 2.0
LEAST_LINES = 3
QUICK = {"runs": 1, "seconds": 4.0, "bytes": "1000000", "ps": "1", "workers": "1", "pipeline": "1,2"}


@dataclass(frozen=True)
class Workload:
    """total_bytes: of all variables, about.  seconds: that are measured.  pipelines: of ours."""

    variables: int
    total_bytes: int
    ps: int
    workers: int
    seconds: float
    pipelines: tuple[int, ...]
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


class Measured(NamedTuple):
    """rate: steps per second, of all workers together.  receives: of a step of the first, see receives.py."""

    rate: float
    receives: dict[str, int]

    def __str__(self) -> str:
        return f"{self.rate:.1f} steps/s"


def ours(work: Workload, pipeline: int) -> Measured:
    """With so many steps under way.

    Raises:
        LateError: a process failed, or hangs.
    """
    with processes(work.environment) as started:
        job = ["--ps", str(work.ps), "--min-workers", str(work.workers), "--plan", work.plan]
        job += ["--pipeline", str(pipeline)]
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
    """The peer.

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
    """Once all workers train."""
    started.wait_for("every worker's first step", lambda: all(map(step_times, logs)) or None, START_S)
    since_s = time.time() + WARM_UP_S

    def is_over() -> bool | None:
        lines_since = [[t for _, t in step_times(log) if t >= since_s] for log in logs]
        enough = all(len(times) >= LEAST_LINES for times in lines_since)
        return (enough and time.time() >= since_s + work.seconds) or None

    started.wait_for("enough steps", is_over, START_S)
    until_s = time.time()
    return Measured(sum(rate(step_times(log), since_s, until_s) for log in logs), receives_of(logs[0]))


def measure(workloads: list[Workload], runs: int, say: Progress) -> dict[str, Any]:
    """One result for each workload and pipeline, under "each"."""
    each = []
    for work in workloads:
        rounds = []
        for run in range(runs):
            rounds.append([*(ours(work, pipeline) for pipeline in work.pipelines), stock(work)])
            say(f"{work}: run {run + 1} of {runs}: {', '.join(map(str, rounds[-1]))}, the last of stock")
        for number, pipeline in enumerate(work.pipelines):
            mine, peer = [r[number].rate for r in rounds], [r[-1].rate for r in rounds]
            figures = compared(mine, peer, [a / b for a, b in zip(mine, peer, strict=True)])
            receives = {"ours": rounds[0][number].receives, "peer": rounds[0][-1].receives}
            workload = f"{work}, pipeline {pipeline}"
            each.append({"workload": workload, "unit": "steps/s", **figures, "receives": receives})
    return each[0] if len(each) == 1 else {"workload": "async training", "each": each}


def text_of(result: dict[str, Any]) -> str:
    return "\n".join(map(line_of, result.get("each", [result])))


def line_of(result: dict[str, Any]) -> str:
    spread = {name: f"{low:.1f} to {high:.1f}" for name, (low, high) in result["spread"].items()}
    return (
        f"{result['workload']}: ours {result['ours']:.1f} steps/s ({spread['ours']}), stock {result['peer']:.1f} "
        f"({spread['peer']}), ratio {result['ratio']:.2f} ({spread['ratio']}), {result['runs']} runs; "
        f"receives a step: ours {told(result['receives']['ours'])}; stock {told(result['receives']['peer'])}"
    )


def told(receives: dict[str, int]) -> str:
    return ", ".join(f"{count} {ends}" for ends, count in sorted(receives.items())) or "none"


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
    parser.add_argument("--pipeline", default="1,2", help="of ours")
    parser.add_argument("--plan", default="packed", help="of ours")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)

    def measured_all(say: Progress) -> dict[str, Any]:
        grid = product(numbers(arguments.bytes), numbers(arguments.ps), numbers(arguments.workers))
        pipelines = tuple(numbers(arguments.pipeline))
        workloads = [
            Workload(arguments.variables, size, ps, workers, arguments.seconds, pipelines, arguments.plan)
            for size, ps, workers in grid
        ]
        return measure(workloads, arguments.runs, say)

    print_result(arguments, measured_all, text_of)


if __name__ == "__main__":
    main()
