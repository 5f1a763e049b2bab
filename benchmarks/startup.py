"""How long a worker that is not the chief waits from "prepared" to its first step: ours and stock TensorFlow's.

    python -m benchmarks.startup [--runs 3] [--quick] [--json]

Both start one ps and two workers at the same time on this machine; the runs alternate.
"""

from __future__ import annotations

from typing import Any

from benchmarks.command_line import Progress, parser_of, print_result
from benchmarks.figures import compared
from benchmarks.processes import free_addresses, processes, seconds_of


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


def measure(runs: int, say: Progress) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    for run in range(runs):
        for name, measured in (("ours", ours), ("peer", stock)):
            seconds[name].append(measured())
            say(f"run {run + 1} of {runs}: {name} {seconds[name][-1]:.2f} s")
    ratios = [peer / mine for mine, peer in zip(seconds["ours"], seconds["peer"], strict=True)]
    return {
        "workload": "startup: from prepared to the first step of a worker that is not the chief",
        "peer_is": "stock TensorFlow",
        "unit": "s",
        **compared(seconds["ours"], seconds["peer"], ratios),
    }


def text_of(result: dict[str, Any]) -> str:
    return f"{result['workload']}: ours {result['ours']:.2f} s, stock TensorFlow {result['peer']:.1f} s"


def main() -> None:
    parser = parser_of(__doc__, "one run, under 90 s")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    runs = 1 if arguments.quick else arguments.runs
    print_result(arguments, lambda tell: measure(runs, tell), text_of)


if __name__ == "__main__":
    main()
