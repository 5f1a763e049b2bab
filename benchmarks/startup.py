"""How long a worker that is not the chief waits from "prepared" to its first step: ours and stock TensorFlow's.

    python -m benchmarks.startup [--runs 3] [--quick] [--json]

Both start one ps and two workers at the same time on this machine; the runs alternate.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import median

WAIT_S = 120.0  # for anything that a process is to print
PYTHON = [sys.executable, "-m"]


class Processes:
    """Processes with a log file each, all of them killed at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *command: str) -> Path:
        log = self._folder / f"{name}.log"
        with log.open("wb") as out:
            self._all.append(subprocess.Popen([*PYTHON, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out))
        return log

    def end(self) -> None:
        for process in reversed(self._all):
            process.send_signal(signal.SIGKILL)
            process.wait()


@contextmanager
def processes() -> Iterator[Processes]:
    with tempfile.TemporaryDirectory() as folder:
        started = Processes(Path(folder))
        try:
            yield started
        finally:
            started.end()


def line_with(log: Path, text: str) -> str:
    """The first line of a log that has the text; waits for it."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        for line in log.read_text(errors="replace").splitlines():
            if text in line:
                return line
        time.sleep(0.02)
    raise SystemExit(f"'{text}' did not appear within {WAIT_S:g} s in:\n{log.read_text(errors='replace')}")


def ours() -> float:
    """Seconds from the coordinator's "prepared" to the first step of the worker that is not the chief."""
    with processes() as started:
        job = ["--min-workers", "2", "--train-steps", "100000000"]
        ps = started.start("ps", "psruntime.ps", "--index", "0", "--coordinator", "127.0.0.1:0", *job)
        address = line_with(ps, "READY coordinator").split()[3]
        workers = [
            started.start(f"worker-{i}", "psruntime.worker", "--index", str(i), "--coordinator", address)
            for i in (0, 1)
        ]
        prepared_s = time_of(line_with(ps, " prepared view=1 "))
        chief = int(line_with(ps, " chief worker=").rsplit("=", 1)[1])
        return time_of(line_with(workers[1 - chief], " first_step ")) - prepared_s


def stock() -> float:
    """The same of stock TensorFlow: worker 0 is its chief."""
    ports = free_ports(3)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    with processes() as started:
        cluster = ["--ps", addresses[0], "--workers", ",".join(addresses[1:])]
        started.start("ps", "benchmarks.stock_async", "--role", "ps", "--index", "0", *cluster)
        workers = [
            started.start(f"worker-{i}", "benchmarks.stock_async", "--role", "worker", "--index", str(i), *cluster)
            for i in (0, 1)
        ]
        prepared_s = float(line_with(workers[0], "prepared ").split()[1])
        return float(line_with(workers[1], "first_step ").split()[1]) - prepared_s


def time_of(line: str) -> float:
    """The time of a log line, in seconds of the system's clock."""
    return datetime.fromisoformat(line.split()[0].replace("Z", "+00:00")).timestamp()


def free_ports(count: int) -> list[int]:
    """Stock TensorFlow wants its ports chosen before anything starts."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def measure(runs: int, say: Callable[[str], None]) -> dict[str, object]:
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    for run in range(runs):
        for name, measured in (("ours", ours), ("peer", stock)):
            seconds[name].append(measured())
            say(f"run {run + 1} of {runs}: {name} {seconds[name][-1]:.2f} s")
    ratios = [peer / mine for mine, peer in zip(seconds["ours"], seconds["peer"], strict=True)]
    return {
        "workload": "startup: from prepared to the first step of a worker that is not the chief",
        "unit": "s",
        "ours": median(seconds["ours"]),
        "peer": median(seconds["peer"]),
        "ratio": median(ratios),
        "spread": {"ours": spread(seconds["ours"]), "peer": spread(seconds["peer"]), "ratio": spread(ratios)},
        "runs": runs,
    }


def spread(values: list[float]) -> list[float]:
    return [min(values), max(values)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one run, under 90 s")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, the progress on stderr")
    arguments = parser.parse_args()
    out = sys.stderr if arguments.json else sys.stdout
    result = measure(1 if arguments.quick else arguments.runs, lambda text: print(text, file=out, flush=True))
    if arguments.json:
        print(json.dumps(result))
    else:
        print(f"{result['workload']}: ours {result['ours']:.2f} s, stock TensorFlow {result['peer']:.1f} s")


if __name__ == "__main__":
    main()
