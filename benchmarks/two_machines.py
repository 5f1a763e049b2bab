"""Examples per second of sync training on two machines over those of one, on a simulated accelerator.

    python -m benchmarks.two_machines [--runs 3] [--seconds 15] [--batch-size 64] [--example-s 0.004]
                                      [--variables 158] [--bytes 9000000] [--quick] [--json]

Each machine has a worker and a ps beside it (`psruntime task --colocate-ps`).  An example takes its worker a time in
which it uses no CPU, in place of what an accelerator computes (per_example.py): so two workers share what this
machine has for the rest.  By default the variables are as many and as large as those of MobileNetV2.  Once the two
machines have the batch of the one together, half each, and once each has as many as the one.

Beside the gain stands that of the tutorial for two machines with a GPU each and MobileNetV2 (TUTORIAL).
"""

from __future__ import annotations

from statistics import median
from typing import Any, NamedTuple

from benchmarks import layer_stack, per_example, straggling
from benchmarks.command_line import Progress, parser_of, print_result
from benchmarks.measured import Measured, measured
from benchmarks.processes import free_addresses, processes

QUICK = {"runs": 1, "seconds": 3.0, "variables": 16, "bytes": 200_000, "example_s": 0.002}


class Case(NamedTuple):
    """machines, and the part of the batch size that each has.  tutorial: the gains that it reports, of two models."""

    text: str
    machines: int
    part: float
    tutorial: tuple[float, float] | None = None


ONE = Case("one machine", 1, 1.0)
CASES = (
    ONE,
    Case("two machines, the same batch together", 2, 0.5, (1.89, 1.98)),
    Case("two machines, twice the batch together", 2, 1.0, (2.15, 2.09)),
)


class Work(NamedTuple):
    """batch_size: of the one machine.  example_s: seconds that an example takes."""

    batch_size: int
    example_s: float
    variables: int
    total_bytes: int

    @property
    def environment(self) -> dict[str, str]:
        return {
            **layer_stack.environment(self.variables, self.total_bytes),
            straggling.STEP_S: str(self.example_s * per_example.BATCH_SIZE),
            straggling.SLOW_WORKER: "-1",
            straggling.SLOW_FACTOR: "1",
        }


def examples_per_s(case: Case, work: Work, seconds: float) -> tuple[float, Measured]:
    """Of all machines together.

    Raises:
        LateError: a process failed, or hangs.
    """
    size = int(work.batch_size * case.part)
    addresses = ",".join(free_addresses(case.machines))
    command = [
        "psruntime.task", "--colocate-ps", "--worker-hosts", addresses, "--model", per_example.__name__,
        "--batch-size", str(size), "--index",
    ]  # fmt: skip
    with processes(work.environment) as started:
        logs = [started.start(f"worker-{index}", *command, str(index)) for index in range(case.machines)]
        found = measured(started, logs, seconds)
        return found.rate * size, found


def measure(work: Work, runs: int, seconds: float, say: Progress) -> dict[str, Any]:
    rates: dict[Case, list[float]] = {case: [] for case in CASES}
    for run in range(runs):
        for case, of_case in rates.items():
            rate, found = examples_per_s(case, work, seconds)
            of_case.append(rate)
            say(f"run {run + 1} of {runs}: {case.text}: {rate:.1f} examples/s, {found}")
    each = []
    for case, of_case in rates.items():
        gains = [rate / one for rate, one in zip(of_case, rates[ONE], strict=True)]
        each.append(
            {
                "workload": case.text,
                "examples_per_s": median(of_case),
                "gain": median(gains),
                "spread": [min(gains), max(gains)],
                "tutorial": case.tutorial,
            }
        )
    held = layer_stack.held_bytes(work.variables, work.total_bytes)
    return {
        "workload": f"sync with a ps beside each worker, a simulated accelerator with {work.example_s:g} s an example, "
        f"batches of {work.batch_size} on one machine, {work.variables} variables of {held} bytes together",
        "runs": runs,
        "each": each,
    }


def text_of(result: dict[str, Any]) -> str:
    lines = [f"{result['workload']}, {result['runs']} runs"]
    for each in result["each"]:
        low, high = each["spread"]
        line = f"  {each['workload']}: {each['examples_per_s']:.1f} examples/s"
        if each["tutorial"]:
            theirs = " and ".join(f"{gain:.2f}" for gain in each["tutorial"])
            line += f", {each['gain']:.2f} times one ({low:.2f} to {high:.2f}); the tutorial {theirs}"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    parser = parser_of(__doc__, f"under 60 s, with {QUICK} whatever else is given")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="that are measured in each run")
    parser.add_argument("--batch-size", type=int, default=64, help="of the one machine")
    parser.add_argument("--example-s", type=float, default=0.004, help="seconds that an example takes")
    parser.add_argument("--variables", type=int, default=158)
    parser.add_argument("--bytes", type=int, default=9_000_000, help="of all variables together")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    work = Work(arguments.batch_size, arguments.example_s, arguments.variables, arguments.bytes)
    print_result(arguments, lambda say: measure(work, arguments.runs, arguments.seconds, say), text_of)


if __name__ == "__main__":
    main()
