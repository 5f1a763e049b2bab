"""Steps per second of async training over a slow link: ours with half precision on the wire or the largest entries of
gradients alone, and with float32.

    python -m benchmarks.links [--runs 3] [--megabits 100,1000] [--seconds 20] [--variables 160] [--bytes 10000000]
                               [--workers 1] [--wire bfloat16 | --top-k 0.01] [--stock]
                               [--accuracy [--steps 600]] [--quick] [--json]

The ps is on one machine and the workers on the other: two network namespaces, joined by a cable that `tc tbf` limits in
each direction (link.py).  This needs root, `ip` and `tc`; where they are not, it says so and ends well.
The runs alternate.  With --stock, stock TensorFlow's between-graph training on the same link is one more peer.

With --top-k the optimizer is Momentum instead of Adam, under which all entries change at each step.

With --accuracy, also the held-out accuracy of the Fashion-MNIST example after as many steps with both, on this machine;
PSRUNTIME_TEST_DATA names the folder that holds its data.
"""

from __future__ import annotations

from typing import Any

from benchmarks.async_steps import line_of, result_of
from benchmarks.command_line import Progress, numbers, parser_of, print_result
from benchmarks.jobs import Workload, our_job, stock_job
from benchmarks.layer_stack import ADAM, MOMENTUM
from benchmarks.link import link, missing
from benchmarks.measured import Measured, measured
from benchmarks.processes import processes
from benchmarks.wire_accuracy import MODEL, MOMENTUM_MODEL, data_dir, measure_accuracy
from benchmarks.wire_accuracy import text_of as accuracy_text

FULL = "float32"
STOCK = "stock"
WIRES = ("bfloat16", "float16")
QUICK = {"runs": 1, "megabits": [100], "seconds": 3.0, "workers": 1, "stock": False, "accuracy": False}

Overrides = tuple[str, ...]


def run_of(settings: Overrides | None, work: Workload, megabits: int, seconds: float) -> Measured:
    """Of ours with these settings; None: of stock's.

    Raises:
        LateError: a process failed, or hangs.
    """
    with link(megabits) as (ps_on, workers_on), processes(work.environment) as started:
        if settings is None:
            start_worker = stock_job(started, work, ps_on=ps_on, workers_on=workers_on)
        else:
            job = [*settings, "--min-workers", str(work.workers)]
            start_worker = our_job(started, work, *job, ps_on=ps_on, workers_on=workers_on)
        return measured(started, [start_worker(index) for index in range(work.workers)], seconds)


def measure(
    work: Workload, speeds: list[int], sides: dict[str, Overrides | None], runs: int, seconds: float, say: Progress
) -> dict[str, Any]:
    """One result for each speed and peer, under "each"; or why there is none, under "skipped".

    sides: the first is measured, the others are its peers.
    """
    if why := missing():
        return {"workload": str(work), "skipped": why}
    each = []
    ours, *peers = sides
    for megabits in speeds:
        found: dict[str, list[Measured]] = {side: [] for side in sides}
        for run in range(runs):
            for side, settings in sides.items():
                found[side].append(run_of(settings, work, megabits, seconds))
                say(f"{megabits} Mbit/s: run {run + 1} of {runs}: {side}: {found[side][-1].rate:.2f} steps/s")
        where = f"{work}, a link of {megabits} Mbit/s, ours with {ours}"
        each += [{"workload": where, "peer_is": peer, **result_of(found[ours], found[peer])} for peer in peers]
    return each[0] if len(each) == 1 else {"workload": "async training over a link", "each": each}


def text_of(result: dict[str, Any]) -> str:
    if "skipped" in result:
        told = [f"skipped: {result['skipped']}"]
    else:
        told = [line_of(each) for each in result.get("each", [result])]
    if "accuracy" in result:
        told.append(accuracy_text(result["accuracy"]))
    return "\n".join(told)


def main() -> None:
    parser = parser_of(__doc__, f"under 60 s, with {QUICK} whatever else is given")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--megabits", type=numbers, default="100,1000", help="a second, in each direction")
    parser.add_argument("--seconds", type=float, default=20.0, help="that are measured in each run")
    parser.add_argument("--variables", type=int, default=160)
    parser.add_argument("--bytes", type=int, default=10_000_000, help="of all variables together, about")
    parser.add_argument("--workers", type=int, default=1)
    less = parser.add_mutually_exclusive_group()
    less.add_argument("--wire", choices=WIRES, default=WIRES[0])
    less.add_argument("--top-k", help="fraction of the entries of gradients that is sent, in float32")
    parser.add_argument("--stock", action="store_true", help="also stock TensorFlow")
    parser.add_argument("--accuracy", action="store_true", help="also the accuracy with both")
    parser.add_argument("--steps", type=int, default=600, help="before the accuracy")
    given = parser.parse_args()
    if given.quick:
        vars(given).update(QUICK)
    optimizer, model = (MOMENTUM, MOMENTUM_MODEL) if given.top_k else (ADAM, MODEL)
    work = Workload(given.variables, given.bytes, 1, given.workers, optimizer=optimizer)
    ours = {f"top-k {given.top_k}": ("--top-k", given.top_k)} if given.top_k else {given.wire: ("--wire", given.wire)}
    both: dict[str, Overrides] = {**ours, FULL: ("--wire", FULL)}
    sides: dict[str, Overrides | None] = {**both, **({STOCK: None} if given.stock else {})}

    def result(say: Progress) -> dict[str, Any]:
        folder = data_dir() if given.accuracy else ""  # before the links, which take long
        found = measure(work, given.megabits, sides, given.runs, given.seconds, say)
        if given.accuracy:
            found["accuracy"] = measure_accuracy(folder, model, both, given.steps, given.runs, say)
        return found

    print_result(given, result, text_of)


if __name__ == "__main__":
    main()
