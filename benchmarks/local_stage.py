"""What a local stage saves on a slow link: the time of a training in mode sync, and of one that begins with such a
stage.

    python -m benchmarks.local_stage [--runs 3] [--megabits 100] [--workers 4] [--steps 300] [--local 200]
                                     [--quick] [--json]

Both take as many global steps of the Fashion-MNIST example, and its held-out accuracy stands beside the time, from the
first step to the last.  PSRUNTIME_TEST_DATA names the folder that holds its data.  The ps is on one machine and the
workers on the other, as in links.py.  The runs alternate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

from benchmarks.command_line import Progress, parser_of, print_result
from benchmarks.jobs import our_job
from benchmarks.link import link, missing
from benchmarks.processes import lines, processes, seconds_of
from benchmarks.wire_accuracy import BATCH_SIZE, MODEL, data_dir

SYNC, LOCAL = "sync", "local"
WITHIN_S = 600.0
QUICK = {"runs": 1, "steps": 30, "local": 20, "workers": 2}


@dataclass(frozen=True)
class Work:
    """One ps, and so many workers, on the Fashion-MNIST example."""

    workers: int
    ps: int = 1
    model: str = MODEL
    batch_size: int = BATCH_SIZE
    settings: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def trained(mode: tuple[str, ...], steps: int, workers: int, megabits: int, folder: str, seed: int) -> dict[str, float]:
    """Seconds of the training, and the accuracy after it.

    Raises:
        LateError: a process failed, or hangs.
    """
    data = ("--data-dir", folder, "--seed", str(seed))
    with link(megabits) as (ps_on, workers_on), processes() as started:
        job = [*mode, "--train-steps", str(steps), "--min-workers", str(workers), "--linger", "0"]
        start_worker = our_job(
            started, Work(workers), *job, ps_on=ps_on, workers_on=workers_on,
            flags_of=lambda name: data if name.startswith("worker") else (),
        )  # fmt: skip
        logs = [start_worker(index) for index in range(workers)]

        def accuracy() -> float | None:
            said = [line for log in logs for line in lines(log) if line.startswith("held out")]
            return float(said[0].rsplit("accuracy ", 1)[1]) if said else None

        found = started.wait_for("the held-out accuracy", accuracy, WITHIN_S)
        began, ended = (
            started.line_with(started.log("ps-0"), f" now={phase} ").split()[0] for phase in ("TRAINING", "DRAINING")
        )
    return {"seconds": seconds_of(ended) - seconds_of(began), "accuracy": found}


def measure(
    runs: int, steps: int, local: int, workers: int, megabits: int, folder: str, say: Progress
) -> dict[str, Any]:
    """Each run of both sides, and what becomes of them."""
    sides = {SYNC: ("--mode", SYNC), LOCAL: ("--schedule", f"{LOCAL}:{local}, {SYNC}")}
    each: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for run in range(runs):
        for side, mode in sides.items():
            each[side].append(trained(mode, steps, workers, megabits, folder, 10 * run))
            say(f"run {run + 1} of {runs}: {side}: {each[side][-1]}")
    ratios = [of_sync["seconds"] / of_local["seconds"] for of_sync, of_local in zip(*each.values(), strict=True)]
    setup = {"steps": steps, "local": local, "workers": workers, "megabits": megabits}
    return {**setup, "each": each, "ratio": median(ratios), "spread": [min(ratios), max(ratios)]}


def text_of(result: dict[str, Any]) -> str:
    if why := result.get("skipped"):
        return f"skipped: {why}"

    def side(name: str, mode: str) -> str:
        found = result["each"][name]
        seconds, accuracy = median(each["seconds"] for each in found), mean(each["accuracy"] for each in found)
        return f"{mode} {seconds:.1f} s, held-out accuracy {accuracy:.4f}"

    low, high = result["spread"]
    return (
        f"{result['steps']} global steps of {result['workers']} workers at {result['megabits']} Mbit/s: "
        f"{side(SYNC, SYNC)}; {side(LOCAL, f'{LOCAL}:{result[LOCAL]}, {SYNC}')}; "
        f"{result['ratio']:.2f} times as fast ({low:.2f} to {high:.2f})"
    )


def main() -> None:
    parser = parser_of(__doc__, f"a short run that shows that all works: {QUICK}")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--megabits", type=int, default=100, help="a second, in each direction")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300, help="global steps of the training")
    parser.add_argument("--local", type=int, default=200, help="of them, those of the local stage")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)

    def measured(say: Progress) -> dict[str, Any]:
        if why := missing():
            return {"skipped": why}
        a = arguments
        return measure(a.runs, a.steps, a.local, a.workers, a.megabits, data_dir(), say)

    print_result(arguments, measured, text_of)


if __name__ == "__main__":
    main()
