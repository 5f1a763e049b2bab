"""How the steps per second of async training grow with the workers, on a simulated accelerator: ours and stock's.

    python -m benchmarks.scaling [--runs 2] [--workers 1,2,4,8] [--seconds 10] [--variables 160] [--bytes 2000000]
                                 [--quick] [--json]

Each step contains a wait of 0.1 s that uses no CPU, as if an accelerator computed meanwhile: so the workers share what
this machine has for the rest of their steps, and the ps.  There are 2 ps.  One job grows from the first
number of workers to the last; ours and the peer take turns.  The gain is over the rate with the first number of
workers, as a multiple of its steps per second.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import accelerator
from benchmarks.command_line import Progress, numbers, parser_of, print_result
from benchmarks.figures import compared, spread_of
from benchmarks.jobs import StartWorker, Workload, our_job, stock_job
from benchmarks.measured import measured
from benchmarks.processes import Processes, processes

BATCH_SIZE = 4  # small: what a step computes is what the wait stands for
PS = 2
QUICK = {"runs": 1, "seconds": 3.0, "workers": [1, 4], "variables": 16, "bytes": 200_000}

Rates = dict[int, float]  # number of workers -> steps/s of all of them
Job = Callable[[Processes, Workload], StartWorker]


def rates_of(job: Job, work: Workload, counts: list[int], seconds: float) -> Rates:
    """Of a job that grows.

    Raises:
        LateError: a process failed, or hangs.
    """
    rates: Rates = {}
    with processes(work.environment) as started:
        start_worker = job(started, work)
        logs: list[Path] = []
        for count in counts:
            logs += [start_worker(index) for index in range(len(logs), count)]
            rates[count] = measured(started, logs, seconds).rate
    return rates


def measure(work: Workload, counts: list[int], runs: int, seconds: float, say: Progress) -> dict[str, Any]:
    """One result for each number of workers, under "each"."""
    sides: dict[str, list[Rates]] = {"ours": [], "stock": []}
    for run in range(runs):
        for name, job in (("ours", our_job), ("stock", stock_job)):
            sides[name].append(rates_of(job, work, counts, seconds))
            say(f"run {run + 1} of {runs}: {name} {told(sides[name][-1])} steps/s")
    each = []
    for count in counts:
        mine, peer = ([rates[count] for rates in side] for side in sides.values())
        gains = {name: median(rates[count] / rates[counts[0]] for rates in side) for name, side in sides.items()}
        figures = compared(mine, peer, [a / b for a, b in zip(mine, peer, strict=True)])
        which = {"workers": count, "peer_is": "stock TensorFlow", "unit": "steps/s"}
        each.append({**which, **figures, "gain": gains["ours"], "peer_gain": gains["stock"]})
    return {"workload": f"scaling, simulated accelerator ({accelerator.WAIT_S:g} s a step): {work}", "each": each}


def told(rates: Rates) -> str:
    return ", ".join(f"{rate:.1f} with {count}" for count, rate in rates.items())


def text_of(result: dict[str, Any]) -> str:
    return "\n".join([result["workload"], *map(line_of, result["each"])])


def line_of(each: dict[str, Any]) -> str:
    spread = spread_of(each)
    return (
        f"  {each['workers']} workers: ours {each['ours']:.1f} steps/s ({spread['ours']}), gain {each['gain']:.2f}; "
        f"stock {each['peer']:.1f} ({spread['peer']}), gain {each['peer_gain']:.2f}; ratio {each['ratio']:.2f}"
    )


def main() -> None:
    parser = parser_of(__doc__, f"under 60 s, with {QUICK} whatever else is given")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--workers", type=numbers, default="1,2,4,8", help="numbers of workers, growing")
    parser.add_argument("--seconds", type=float, default=10.0, help="that are measured with each")
    parser.add_argument("--variables", type=int, default=160)
    parser.add_argument("--bytes", type=int, default=2_000_000, help="of all variables together, about")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    counts = arguments.workers
    work = Workload(arguments.variables, arguments.bytes, PS, max(counts), accelerator.__name__, BATCH_SIZE)
    print_result(arguments, lambda say: measure(work, counts, arguments.runs, arguments.seconds, say), text_of)


if __name__ == "__main__":
    main()
