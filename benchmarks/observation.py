"""What it costs to be watched: steps per second of async training with metrics, summaries and a record, and without.

    python -m benchmarks.observation [--by metrics,summaries,record] [--runs 3] [--seconds 20] [--variables 160]
                                     [--bytes 160000000] [--ps 2] [--workers 2] [--quick] [--json]

By metrics: every process serves them, and is read once a second.  By summaries: the chief writes them every 100 global
steps.  By a record: every worker writes what became of its updates.  Without them the job has a folder for checkpoints
too, so that both write the same ones.  The runs alternate.
"""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from benchmarks.async_steps import line_of, result_of
from benchmarks.command_line import Progress, parser_of, print_result, words
from benchmarks.figures import compared, spread_of
from benchmarks.jobs import Workload, our_job
from benchmarks.measured import Measured, measured
from benchmarks.processes import LateError, Processes, processes

QUICK = {"runs": 1, "seconds": 3.0, "variables": 16, "bytes": 1_600_000, "ps": 1, "workers": 1}
READ_EVERY_S = 1.0
WAYS = ("metrics", "summaries", "record")
METRICS = " metrics url="
METRICS_FLAGS = ("--metrics-port", "0")
URL = re.compile(f"{METRICS}(\\S+)")


def run_of(watched_by: Collection[str], work: Workload, seconds: float) -> Measured:
    """One job, watched by some of WAYS.

    Raises:
        LateError: a process failed, or hangs.
    """
    with processes(work.environment) as started:

        def flags_of(name: str) -> tuple[str, ...]:
            is_recorded = "record" in watched_by and name.startswith("worker")
            record = ("--record", str(started.folder / f"{name}.jsonl")) if is_recorded else ()
            return (*METRICS_FLAGS, *record) if "metrics" in watched_by else record

        settings = ["--min-workers", str(work.workers), "--checkpoint-dir", str(started.folder / "checkpoints")]
        settings += ["--summary-steps", "100" if "summaries" in watched_by else "0"]
        start_worker = our_job(started, work, *settings, flags_of=flags_of)
        logs = [start_worker(index) for index in range(work.workers)]
        with _reading(started) if "metrics" in watched_by else nullcontext():
            return measured(started, logs, seconds)


def measure(watched_by: Collection[str], work: Workload, runs: int, seconds: float, say: Progress) -> dict[str, Any]:
    """The rates of runs that alternated, and the time of the processor for a step of all processes together."""
    found: dict[bool, list[Measured]] = {True: [], False: []}
    for run in range(runs):
        for is_watched, of_side in found.items():
            of_side.append(run_of(watched_by if is_watched else (), work, seconds))
            say(f"run {run + 1} of {runs}: {'watched' if is_watched else 'unwatched'}: {of_side[-1]}")
    watched, unwatched = ([sum(run.cpu_ms.values()) for run in found[side]] for side in (True, False))
    return {
        "workload": f"{work}, watched by {', '.join(watched_by)}",
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
    parser.add_argument("--by", type=words(WAYS), default=list(WAYS), help=f"some of {','.join(WAYS)}; default: all")
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
    print_result(given, lambda say: measure(given.by, work, given.runs, given.seconds, say), text_of)


if __name__ == "__main__":
    main()
