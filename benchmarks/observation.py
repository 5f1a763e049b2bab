"""What it costs to be watched: steps per second of async training with metrics, summaries and a record, and without.

    python -m benchmarks.observation [--runs 3] [--seconds 20] [--variables 160] [--bytes 160000000] [--ps 2]
                                     [--workers 2] [--quick] [--json]

With them every process serves its metrics and is read once a second, the chief writes summaries every 100 global steps,
and every worker records its updates.  Without them the job has a folder for checkpoints too, so that both write the
same ones.  The runs alternate.
"""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.async_steps import line_of, result_of
from benchmarks.command_line import Progress, parser_of, print_result
from benchmarks.figures import compared, spread_of
from benchmarks.jobs import Workload, nothing_more, our_job
from benchmarks.measured import Measured, measured
from benchmarks.processes import LateError, Processes, processes

QUICK = {"runs": 1, "seconds": 3.0, "variables": 16, "bytes": 1_600_000, "ps": 1, "workers": 1}
READ_EVERY_S = 1.0
METRICS = " metrics url="
URL = re.compile(f"{METRICS}(\\S+)")


def run_of(is_watched: bool, work: Workload, seconds: float) -> Measured:
    """One job.

    Raises:
        LateError: a process failed, or hangs.
    """
    with processes(work.environment) as started:

        def flags_of(name: str) -> tuple[str, ...]:
            record = ("--record", str(started.folder / f"{name}.jsonl")) if name.startswith("worker") else ()
            return ("--metrics-port", "0", *record)

        settings = ["--min-workers", str(work.workers), "--checkpoint-dir", str(started.folder / "checkpoints")]
        settings += ["--summary-steps", "100" if is_watched else "0"]
        flags = flags_of if is_watched else nothing_more
        start_worker = our_job(started, work, *settings, flags_of=flags)
        logs = [start_worker(index) for index in range(work.workers)]
        if not is_watched:
            return measured(started, logs, seconds)
        with _reading(started):
            return measured(started, logs, seconds)


def measure(work: Workload, runs: int, seconds: float, say: Progress) -> dict[str, Any]:
    """The rates of runs that alternated, and the time of the processor for a step of all processes together."""
    found: dict[bool, list[Measured]] = {True: [], False: []}
    for run in range(runs):
        for is_watched, of_side in found.items():
            of_side.append(run_of(is_watched, work, seconds))
            say(f"run {run + 1} of {runs}: {'watched' if is_watched else 'unwatched'}: {of_side[-1]}")
    watched, unwatched = ([sum(run.cpu_ms.values()) for run in found[side]] for side in (True, False))
    return {
        "workload": f"{work}, watched",
        "peer_is": "unwatched",
        **result_of(found[True], found[False]),
        "cpu_ms": compared(watched, unwatched, [b / a for a, b in zip(watched, unwatched, strict=True)]),
    }


def text_of(result: dict[str, Any]) -> str:
    cpu = result["cpu_ms"]
    return (
        f"{line_of(result)}\n  processor ms a step of all processes: {cpu['ours']:.1f} and {cpu['peer']:.1f}, "
        f"ratio {cpu['ratio']:.2f} ({spread_of(cpu)['ratio']})"
    )


@contextmanager
def _reading(started: Processes) -> Iterator[None]:
    """Reads the metrics of every process as Prometheus does.

    Raises:
        LateError: a process did not answer.
    """
    said = [URL.search(started.line_with(started.log(name), METRICS)) for name in started.pids]
    urls = [match[1] for match in said if match]
    is_over = threading.Event()
    failures: list[str] = []

    def read() -> None:
        while not failures and not is_over.wait(READ_EVERY_S):
            for url in urls:
                try:
                    with urllib.request.urlopen(url, timeout=10) as answer:
                        answer.read()
                except OSError as error:
                    failures.append(f"{url} could not be read: {error}")

    thread = threading.Thread(target=read, name="reads metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    if failures:
        raise LateError(failures[0])


def main() -> None:
    parser = parser_of(__doc__, f"under 60 s, with {QUICK} whatever else is given")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="that are measured in each run")
    parser.add_argument("--variables", type=int, default=160)
    parser.add_argument("--bytes", type=int, default=160_000_000, help="of all variables together, about")
    parser.add_argument("--ps", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    if given.quick:
        vars(given).update(QUICK)
    work = Workload(given.variables, given.bytes, given.ps, given.workers)
    print_result(given, lambda say: measure(work, given.runs, given.seconds, say), text_of)


if __name__ == "__main__":
    main()
