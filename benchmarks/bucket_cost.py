"""What a bucket costs a ps beside its variable: threads, and memory for each worker; ours and stock TensorFlow's.

    python -m benchmarks.bucket_cost [--runs 3] [--modes async,sync] [--variables 20,100] [--workers 1,4] [--steps 20]
                                     [--quick] [--json]

layer_stack with Adam on one ps, a variable of next to no bytes for each bucket.  Three jobs are a measurement: few
variables with few workers, many variables with few workers, many with many.  The difference of the first two in
threads, over that of the variables, is what a bucket costs in threads; the difference of the last two in resident
memory, over that of the workers and over the buckets, is what it costs in memory for each worker.  The peer is
stock's between-graph training in mode async.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.command_line import Progress, numbers, parser_of, print_result, words
from benchmarks.figures import compared, spread_of
from benchmarks.jobs import Workload, our_job, stock_job
from benchmarks.memory_cases import MODES, await_steps
from benchmarks.processes import processes
from benchmarks.resident import RESIDENT, status_bytes, status_number

QUICK = {"runs": 1, "modes": ["async"], "variables": [10, 40], "workers": [1, 2], "steps": 10}
BYTES_EACH = 1000  # of a variable, about
UNITS = {"threads": "threads a bucket", "kilobytes": "kB a bucket and worker"}


@dataclass(frozen=True)
class Held:
    """What a ps holds.  kilobytes: of resident memory."""

    threads: int
    kilobytes: float


def held(mode: str | None, variables: int, workers: int, steps: int) -> Held:
    """By the ps, once every worker has made so many steps; mode None: the peer's.

    Raises:
        LateError: a process failed, or hangs.
    """
    work = Workload(variables, variables * BYTES_EACH, 1, workers)
    with processes(work.environment) as started:
        settings = ["--mode", str(mode), "--plan", "per-variable", "--min-workers", str(workers)]
        start_worker = our_job(started, work, *settings) if mode else stock_job(started, work)
        await_steps(started, [start_worker(index) for index in range(workers)], steps)
        pid = started.pids["ps-0"]
        return Held(status_number(pid, "Threads"), status_bytes(pid, RESIDENT) / 1000)


def cost(mode: str | None, variables: list[int], workers: list[int], steps: int) -> dict[str, float]:
    """Of a bucket: threads; kilobytes for each worker."""
    (few, many), (fewer, more) = variables, workers
    small, large, crowded = held(mode, few, fewer, steps), held(mode, many, fewer, steps), held(mode, many, more, steps)
    return {
        "threads": (large.threads - small.threads) / (many - few),
        "kilobytes": (crowded.kilobytes - large.kilobytes) / (more - fewer) / many,
    }


def measure(
    modes: list[str], variables: list[int], workers: list[int], runs: int, steps: int, say: Progress
) -> dict[str, Any]:
    """One result for each mode and figure, under "each"."""
    costs: dict[str | None, list[dict[str, float]]] = {None: [], **{mode: [] for mode in modes}}
    for run in range(runs):
        for mode, found in costs.items():
            found.append(cost(mode, variables, workers, steps))
            say(f"run {run + 1} of {runs}: {mode or 'stock'}: {text_of_cost(found[-1])}")
    each = []
    for mode in modes:
        for figure, unit in UNITS.items():
            ours, peer = ([found[figure] for found in costs[of]] for of in (mode, None))
            ratios = [b / a if a else 0.0 for a, b in zip(ours, peer, strict=True)]
            each.append({"workload": mode, "unit": unit, **compared(ours, peer, ratios)})
    return {"workload": f"{variables} variables of {BYTES_EACH} bytes, {workers} workers", "each": each}


def text_of_cost(found: dict[str, float]) -> str:
    return ", ".join(f"{found[figure]:.2f} {unit}" for figure, unit in UNITS.items())


def text_of(result: dict[str, Any]) -> str:
    return "\n".join([result["workload"], *map(line_of, result["each"])])


def line_of(each: dict[str, Any]) -> str:
    spread = spread_of(each)
    return (
        f"  {each['workload']}: {each['unit']}: ours {each['ours']:.2f} ({spread['ours']}), stock {each['peer']:.2f} "
        f"({spread['peer']}), {each['runs']} runs"
    )


def main() -> None:
    parser = parser_of(__doc__, f"some 90 s, with {QUICK} whatever else is given")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--modes", type=words(MODES), default="async,sync")
    parser.add_argument("--variables", type=numbers, default="20,100", help="few and many, both even")
    parser.add_argument("--workers", type=numbers, default="1,4", help="few and many")
    parser.add_argument("--steps", type=int, default=20, help="of each worker, before the ps is looked at")
    given = parser.parse_args()
    if given.quick:
        vars(given).update(QUICK)
    for name in ("variables", "workers"):
        pair = vars(given)[name]
        if len(pair) != 2 or not 0 < pair[0] < pair[1]:
            parser.error(f"--{name} takes two numbers above 0, the smaller one first")
    print_result(
        given,
        lambda say: measure(given.modes, given.variables, given.workers, given.runs, given.steps, say),
        text_of,
    )


if __name__ == "__main__":
    main()
