"""What half precision on the wire costs a model: held-out accuracy of examples.fashion_mnist after as many steps.

One ps and one worker on this machine, so that little differs but the wire: the same seed, the same batches, in order.
Only 615 images are held out, so a run's accuracy has a standard deviation of 0.007 all the same.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.command_line import Progress
from benchmarks.processes import processes

DATA = "PSRUNTIME_TEST_DATA"
MODEL = "psruntime.examples.fashion_mnist"
BATCH_SIZE = 64
WITHIN_S = 300.0


def data_dir() -> str:
    """Folder of the data.

    Raises:
        ValueError: the environment does not name it.
    """
    root = os.environ.get(DATA)
    if not root:
        raise ValueError(f"{DATA} is not set: it names the folder that holds fashion-mnist-3615")
    return str(Path(root) / "fashion-mnist-3615")


def accuracy(folder: str, wire: str, steps: int, seed: int) -> float:
    """After so many steps.

    Raises:
        LateError: a process failed, or hangs.
    """
    with processes() as started:
        job = ["--wire", wire, "--train-steps", str(steps), "--linger", "0"]
        ps = started.start("ps", "psruntime.ps", "--index", "0", "--coordinator", "127.0.0.1:0", *job)
        address = started.line_with(ps, "READY coordinator").split()[3]
        model = ["--model", MODEL, "--data-dir", folder, "--batch-size", str(BATCH_SIZE), "--seed", str(seed)]
        log = started.start("worker", "psruntime.worker", "--index", "0", "--coordinator", address, *model)

        def said() -> float | None:
            found = [line for line in log.read_text().splitlines() if line.startswith("held out")]
            return float(found[0].rsplit("accuracy ", 1)[1]) if found else None

        return started.wait_for("the held-out accuracy", said, WITHIN_S)


def measure_accuracy(folder: str, wires: tuple[str, str], steps: int, runs: int, say: Progress) -> dict[str, Any]:
    """A seed for each run; difference: of the means, the first wire's less the second's."""
    each: dict[str, list[float]] = {wire: [] for wire in wires}
    for run in range(runs):
        for wire, found in each.items():
            found.append(accuracy(folder, wire, steps, 10 * run))
            say(f"run {run + 1} of {runs}: {wire}: accuracy {found[-1]:.4f} after {steps} steps")
    first, second = (mean(each[wire]) for wire in wires)
    return {"model": MODEL, "steps": steps, "runs": runs, "each": each, "difference": first - second}


def text_of(result: dict[str, Any]) -> str:
    means = ", ".join(f"{wire} {mean(found):.4f}" for wire, found in result["each"].items())
    return (
        f"held-out accuracy of {result['model']} after {result['steps']} steps, mean of {result['runs']} seeds: "
        f"{means}; difference {result['difference']:+.4f}"
    )
