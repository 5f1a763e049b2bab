"""What the ps add to a step: milliseconds of one with ps, ours, and without, in one process of plain TensorFlow.

    python -m benchmarks.local_step [--runs 3] [--seconds 10] [--variables 160] [--bytes 40000] [--ps 1] [--pipeline 1]
                                    [--quick] [--json]

Both train layer_stack with Adam on the same batches, ours in mode async with one worker; the runs alternate.  The one
without runs its steps through MonitoredTrainingSession, as is usual, whose own cost is in it.  The difference is of the
two in the same turn; so is the ratio, the time without ps over the time with them.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.async_steps import ours
from benchmarks.command_line import Progress, parser_of, print_result
from benchmarks.figures import compared, spread_of
from benchmarks.jobs import Workload
from benchmarks.measured import measured
from benchmarks.processes import processes

QUICK = {"runs": 1, "seconds": 4.0}


def local(work: Workload, seconds: float) -> float:
    """Steps/s.

    Raises:
        LateError: it failed, or hangs.
    """
    with processes(work.environment) as started:
        command = ["benchmarks.local_layers", "--model", work.model, "--batch-size", str(work.batch_size)]
        return measured(started, [started.start("local", *command)], seconds).rate


def measure(work: Workload, pipeline: int, runs: int, seconds: float, say: Progress) -> dict[str, Any]:
    mine, peer = [], []  # milliseconds of a step
    for run in range(runs):
        mine.append(1000 / ours(work, pipeline, seconds).rate)
        peer.append(1000 / local(work, seconds))
        say(f"run {run + 1} of {runs}: with ps {mine[-1]:.2f} ms a step, without {peer[-1]:.2f}")
    differences = [a - b for a, b in zip(mine, peer, strict=True)]
    result = compared(mine, peer, [b / a for a, b in zip(mine, peer, strict=True)])
    result["spread"]["difference"] = [min(differences), max(differences)]
    return {"workload": f"{work}, pipeline {pipeline}", "unit": "ms", "difference": median(differences), **result}


def text_of(result: dict[str, Any]) -> str:
    spread = spread_of(result)
    return (
        f"{result['workload']}: the ps add {result['difference']:.2f} ms to a step ({spread['difference']}): "
        f"with them {result['ours']:.2f} ms ({spread['ours']}), without {result['peer']:.2f} ({spread['peer']}); "
        f"ratio {result['ratio']:.2f} ({spread['ratio']}), {result['runs']} runs"
    )


def main() -> None:
    parser = parser_of(__doc__, f"under 60 s, with {QUICK} whatever else is given")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="that are measured in each run")
    parser.add_argument("--variables", type=int, default=160)
    parser.add_argument("--bytes", type=int, default=40_000, help="of all variables together, about")
    parser.add_argument("--ps", type=int, default=1)
    parser.add_argument("--pipeline", type=int, default=1, help="of ours")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    print_result(
        arguments,
        lambda say: measure(
            Workload(arguments.variables, arguments.bytes, arguments.ps, 1),
            arguments.pipeline,
            arguments.runs,
            arguments.seconds,
            say,
        ),
        text_of,
    )


if __name__ == "__main__":
    main()
