"""How long nobody steps when an operator changes the mode of a running job.

    python -m benchmarks.mode_switches [--runs 3] [--workers 4] [--model MODULE] [--quick] [--json]

Each run changes a job on this machine through all six changes between the three modes, and looks for the longest time
without an update in the workers' records about each.  Beside it stands the longest such time of a second in which
nothing was changed, and the time of a step in the modes async and sync, from one update of a worker to its next.

benchmarks.accelerator is a model with longer steps, which wait as for an accelerator.
"""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks import layer_stack
from benchmarks.command_line import Progress, parser_of, print_result
from benchmarks.processes import processes
from psruntime.commands.control import ask, command_of
from psruntime.observe.records import read_records
from psruntime.rpc.client.coordinator_client import CoordinatorClient

CHANGES = (
    "bounded 4",
    "async",
    "sync",
    "async",
    "bounded 4",
    "sync",
    "bounded 4",
)  # all six, and one again
APART_S = 4.0  # between two changes
QUIET_S = 2.0  # of that, in which nothing was changed
PS = 2
VARIABLES, BYTES = 40, 1_000_000  # of benchmarks.accelerator


def switched(workers: int, model: str) -> tuple[dict[str, float], float, dict[str, float]]:
    """(seconds without an update by change, the same while nothing was changed, of a step by mode)."""
    with processes(layer_stack.environment(VARIABLES, BYTES)) as started:
        record = str(started.folder / "record.jsonl")
        job = [f"--ps={PS}", f"--min-workers={workers}", "--train-steps=100000000"]
        first = started.start("ps-0", "psruntime.ps", "--index=0", "--coordinator=127.0.0.1:0", *job)
        address = started.line_with(first, "READY coordinator").split()[3]
        for index in range(1, PS):
            started.start(f"ps-{index}", "psruntime.ps", f"--index={index}", f"--coordinator={address}")
        for index in range(workers):
            flags = [f"--index={index}", f"--coordinator={address}", f"--record={record}", f"--model={model}"]
            log = started.start(f"worker-{index}", "psruntime.worker", *flags)
        started.line_with(log, " first_step ")
        asked = []
        with closing(CoordinatorClient(address)) as client:
            before = "async"
            for mode in CHANGES:
                time.sleep(APART_S)
                began_s = time.time()
                at = ask(client, command_of(["mode", *mode.split()]), 60.0).global_step
                started.wait_for(f"steps in mode {mode}", partial(_is_beyond, client, at))
                asked.append((f"{before} to {mode}", began_s))
                before = mode
            time.sleep(APART_S)
            ask(client, command_of(["pause"]), 60.0)  # so that all records are written
            time.sleep(QUIET_S)
        records = read_records(record)
    times = sorted(each.time for each in records)
    gaps: dict[str, float] = {}
    for (name, began_s), (_, next_s) in pairwise([*asked, ("", times[-1])]):
        gaps.setdefault(name, _longest(times, began_s, next_s))
    first_s = asked[0][1]
    own = [each for each in records if each.worker == 0 and each.time > first_s - QUIET_S]
    steps = {mode: _step([each.time for each in own if each.mode == mode]) for mode in ("async", "sync")}
    return gaps, _longest(times, first_s - QUIET_S, first_s), steps


def _step(times: list[float]) -> float:
    """The median time from one to the next; those of other modes between them are few."""
    return median(later - earlier for earlier, later in pairwise(times))


def _is_beyond(client: CoordinatorClient, global_step: int) -> bool | None:
    return client.get_status()[0].global_step > global_step or None


def _longest(times: list[float], from_s: float, to_s: float) -> float:
    """The longest time between two updates of which the second is in this span."""
    between = [later - earlier for earlier, later in pairwise(times) if from_s < later <= to_s]
    if not between:
        raise ValueError(f"no update within {to_s - from_s:.1f} s: the machine is too busy to measure")
    return max(between)


def measure(runs: int, workers: int, model: str, say: Progress) -> dict[str, Any]:
    gaps: dict[str, list[float]] = {}
    quiet: list[float] = []
    steps: dict[str, list[float]] = {}
    for run in range(runs):
        found, without_s, step_s = switched(workers, model)
        quiet.append(without_s)
        for mode, seconds in step_s.items():
            steps.setdefault(mode, []).append(seconds)
        for name, seconds in found.items():
            gaps.setdefault(name, []).append(seconds)
        say(f"run {run + 1} of {runs}: " + ", ".join(f"{name} {seconds:.3f} s" for name, seconds in found.items()))
    return {
        "workload": f"mode_switches: {model}, {workers} workers, {PS} ps",
        "unit": "s",
        "without_updates": {name: median(each) for name, each in gaps.items()},
        "spread": {name: [min(each), max(each)] for name, each in gaps.items()},
        "unchanged": median(quiet),
        "steps": {mode: median(each) for mode, each in steps.items()},
        "runs": runs,
    }


def text_of(result: dict[str, Any]) -> str:
    lines = [
        f"{result['workload']}, steps of {1e3 * result['steps']['async']:.1f} ms in mode async, "
        f"{1e3 * result['steps']['sync']:.1f} ms in mode sync; longest time without an update: "
        f"{1e3 * result['unchanged']:.0f} ms while nothing was changed"
    ]
    for name, seconds in result["without_updates"].items():
        low, high = result["spread"][name]
        lines.append(f"  {name}: {1e3 * seconds:.0f} ms ({1e3 * low:.0f} to {1e3 * high:.0f})")
    return "\n".join(lines)


def main() -> None:
    parser = parser_of(__doc__, "one run, under 60 s")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--model", default="psruntime.examples.digits", metavar="MODULE")
    arguments = parser.parse_args()
    runs = 1 if arguments.quick else arguments.runs
    print_result(arguments, lambda tell: measure(runs, arguments.workers, arguments.model, tell), text_of)


if __name__ == "__main__":
    main()
