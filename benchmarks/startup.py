"""How long a worker that is not the chief waits from "prepared" to its first step: ours and stock TensorFlow's.

    python -m benchmarks.startup [--runs 3] [--quick] [--json]

Both start one ps and two workers at the same time on this machine; the runs alternate.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.figures import compared
from benchmarks.processes import LateError, free_addresses, processes, seconds_of


def ours() -> float:
    """Seconds from the coordinator's "prepared" to the first step of the worker that is not the chief."""
    with processes() as started:
        job = ["--min-workers", "2", "--train-steps", "100000000"]
        ps = started.start("ps", "psruntime.ps", "--index", "0", "--coordinator", "127.0.0.1:0", *job)
        address = started.line_with(ps, "READY coordinator").split()[3]
        workers = [
            started.start(f"worker-{i}", "psruntime.worker", "--index", str(i), "--coordinator", address)
            for i in (0, 1)
        ]
        prepared_s = time_of(started.line_with(ps, " prepared view=1 "))
        chief = int(started.line_with(ps, " chief worker=").rsplit("=", 1)[1])
        return time_of(started.line_with(workers[1 - chief], " first_step ")) - prepared_s


def stock() -> float:
    """The same of stock TensorFlow: worker 0 is its chief."""
    ps, *workers = free_addresses(3)
    with processes() as started:
        cluster = ["--ps", ps, "--workers", ",".join(workers)]
        started.start("ps", "benchmarks.stock_async", "--role", "ps", "--index", "0", *cluster)
        logs = [
            started.start(f"worker-{i}", "benchmarks.stock_async", "--role", "worker", "--index", str(i), *cluster)
            for i in (0, 1)
        ]
        prepared_s = float(started.line_with(logs[0], "prepared ").split()[1])
        return float(started.line_with(logs[1], "first_step ").split()[1]) - prepared_s


def time_of(line: str) -> float:
    """The time of a log line, in seconds of the system's clock."""
    return seconds_of(line.split()[0])


def measure(runs: int, say: Callable[[str], None]) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    for run in range(runs):
        for name, measured in (("ours", ours), ("peer", stock)):
            seconds[name].append(measured())
            say(f"run {run + 1} of {runs}: {name} {seconds[name][-1]:.2f} s")
    ratios = [peer / mine for mine, peer in zip(seconds["ours"], seconds["peer"], strict=True)]
    return {
        "workload": "startup: from prepared to the first step of a worker that is not the chief",
        "unit": "s",
        **compared(seconds["ours"], seconds["peer"], ratios),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one run, under 90 s")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, the progress on stderr")
    arguments = parser.parse_args()
    out = sys.stderr if arguments.json else sys.stdout
    try:
        result = measure(1 if arguments.quick else arguments.runs, lambda text: print(text, file=out, flush=True))
    except LateError as error:
        raise SystemExit(str(error)) from None
    if arguments.json:
        print(json.dumps(result))
    else:
        print(f"{result['workload']}: ours {result['ours']:.2f} s, stock TensorFlow {result['peer']:.1f} s")


if __name__ == "__main__":
    main()
