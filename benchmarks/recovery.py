"""How long all workers wait for a ps that was killed and is back: ours and stock TensorFlow's.

    python -m benchmarks.recovery [--kills 20] [--quick] [--json]

Both jobs have two ps and two workers and train on this machine, a step every 0.1 s, all the time.  In turn ps 1 of each
is killed and started again at once.  What is measured begins when the new ps is there (ours: it is a member of the
job; stock's: its server is up) and ends with the first step of the last worker.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.command_line import Progress, parser_of, print_result
from benchmarks.figures import compared
from benchmarks.processes import Processes, free_addresses, lines, processes, seconds_of


class Ours:
    """A job of psruntime, once it trains."""

    def __init__(self, started: Processes) -> None:
        self._started = started
        folder = started.folder / "ours"
        job = ["--ps", "2", "--min-workers", "2", "--train-steps", "100000000"]
        job += ["--checkpoint-dir", str(folder), "--save-steps", "100"]
        self._first = started.start("ps-0", "psruntime.ps", "--index", "0", "--coordinator", "127.0.0.1:0", *job)
        address = started.line_with(self._first, "READY coordinator").split()[3]
        self._join = ["--coordinator", address]
        self._ps = self._start_ps(0)
        self._workers = [
            started.start(
                f"worker-{i}", "psruntime.worker", "--index", str(i), *self._join, "--model", "benchmarks.slow_model"
            )
            for i in (0, 1)
        ]

    def await_training(self) -> None:
        for log in self._workers:
            self._started.line_with(log, " first_step ")

    def recover(self, kill: int) -> float:
        """Kills ps 1 and starts it again; returns the seconds."""
        joined = len(self._joined())
        self._started.kill(self._ps)
        self._ps = self._start_ps(kill)
        self._started.wait_for("the ps", lambda: len(self._joined()) > joined or None)
        back_s = self._joined()[joined]
        return max(first_after(self._started, log, " first_step ", _time, back_s) for log in self._workers) - back_s

    def _start_ps(self, kill: int) -> str:
        self._started.start(f"ps-1.{kill}", "psruntime.ps", "--index", "1", *self._join)
        return f"ps-1.{kill}"

    def _joined(self) -> list[float]:
        """When ps 1 became a member."""
        return [_time(line) for line in lines(self._first) if ' member_joined member="ps 1"' in line]


class Stock:
    """A job of stock TensorFlow, once it trains."""

    def __init__(self, started: Processes) -> None:
        self._started = started
        ps, workers = free_addresses(2), free_addresses(2)
        self._cluster = ["--ps", ",".join(ps), "--workers", ",".join(workers)]
        self._cluster += ["--checkpoint-dir", str(started.folder / "stock")]
        self._ps = ["", ""]
        for index in (0, 1):
            self._start_ps(index, 0)
        self._workers = [self._start_worker(0)]

    def await_training(self) -> None:
        """The second worker starts once the first has prepared the variables: else it would sleep for 30 s."""
        self._started.line_with(self._workers[0], "first_step ")
        self._workers.append(self._start_worker(1))
        self._started.line_with(self._workers[1], "first_step ")

    def recover(self, kill: int) -> float:
        """Kills ps 1 and starts it again; returns the seconds."""
        self._started.kill(self._ps[1])
        log = self._start_ps(1, kill)
        back_s = float(self._started.line_with(log, "serving ").split()[1])
        said = lambda line: float(line.split()[1])  # noqa: E731
        return max(first_after(self._started, each, "first_step ", said, back_s) for each in self._workers) - back_s

    def _start_ps(self, index: int, kill: int) -> Path:
        self._ps[index] = f"stock-ps-{index}.{kill}"
        return self._started.start(
            self._ps[index], "benchmarks.stock_async", "--role", "ps", "--index", str(index), *self._cluster
        )

    def _start_worker(self, index: int) -> Path:
        return self._started.start(
            f"stock-worker-{index}", "benchmarks.stock_async", "--role", "worker", "--index", str(index), *self._cluster
        )


def first_after(started: Processes, log: Path, text: str, time_of: Callable[[str], float], since_s: float) -> float:
    """The time of the first line with this text that is later than `since_s`; waits for it."""

    def look() -> float | None:
        return next((t for line in lines(log) if text in line and (t := time_of(line)) > since_s), None)

    return started.wait_for(f"'{text.strip()}' in {log.name}", look)


def _time(line: str) -> float:
    return seconds_of(re.split(r"\s", line, maxsplit=1)[0])


def measure(kills: int, say: Progress) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    with processes() as started:
        jobs: dict[str, Ours | Stock] = {"ours": Ours(started), "peer": Stock(started)}
        for job in jobs.values():
            job.await_training()
        for kill in range(1, kills + 1):
            for name, job in jobs.items():
                seconds[name].append(job.recover(kill))
                say(f"kill {kill} of {kills}: {name} {seconds[name][-1]:.2f} s")
    ratios = [peer / mine for mine, peer in zip(seconds["ours"], seconds["peer"], strict=True)]
    return {
        "workload": "recovery: from the return of a killed ps to the first step of the last worker",
        "peer_is": "stock TensorFlow",
        "unit": "s",
        **compared(seconds["ours"], seconds["peer"], ratios),
    }


def text_of(result: dict[str, Any]) -> str:
    worst = {name: high for name, (_, high) in result["spread"].items()}
    return (
        f"{result['workload']}: ours median {result['ours']:.2f} s, worst {worst['ours']:.2f} s; "
        f"stock TensorFlow median {result['peer']:.1f} s, worst {worst['peer']:.1f} s"
    )


def main() -> None:
    parser = parser_of(__doc__, "one kill of each, under 60 s")
    parser.add_argument("--kills", type=int, default=20, help="of a ps of each; 45 s each pair (default: 20)")
    arguments = parser.parse_args()
    kills = 1 if arguments.quick else arguments.kills
    print_result(arguments, lambda tell: measure(kills, tell), text_of)


if __name__ == "__main__":
    main()
