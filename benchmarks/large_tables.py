"""Tables larger than a worker: the memory of every process, and how long a start, a checkpoint, a delta, a restore on
another number of ps, and the loss of a ps take.

    python -m benchmarks.large_tables [--gigabytes 10] [--replicated-gigabytes 4] [--tables 20] [--width 32]
                                      [--seconds 60] [--quick] [--json]

Two jobs of 2 workers on this machine, with RowwiseAdagrad, whose slots are next to nothing.  The first has 2 ps,
writes deltas and is killed.  Then it goes on with 3 ps from the newest delta, until it is asked to stop, and writes a
last, whole checkpoint.  The second has replicas instead of checkpoints, and ps 1 is killed.  There is no peer: stock
TensorFlow makes the initial value of a table as one tensor, which has to fit into its message.

Memory is the most that was resident in a process until the end of each phase, as the kernel knows it.  The disk needs
room for two checkpoints.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import embedding_tables
from benchmarks.command_line import Progress, parser_of, print_result
from benchmarks.processes import Processes, lines, processes, seconds_of
from benchmarks.resident import status_bytes
from benchmarks.table_data import Tables

QUICK = {"gigabytes": 0.5, "replicated_gigabytes": 0.25, "tables": 4, "seconds": 8.0}
PEAK = "VmHWM"
WORKERS = 2
BATCH_SIZE = 1024
DELTA_EVERY, REPLICATE_EVERY = 200, 200  # steps
STARTS_S = 600.0  # for anything that moves all tables


class Job:
    """A job of ours on tables, which trains once it is made."""

    def __init__(self, started: Processes, ps: int, *settings: str) -> None:
        self.started = started
        self.began_s = time.time()
        job = ["--ps", str(ps), "--min-workers", str(WORKERS), "--ps-timeout", str(STARTS_S), *settings]
        self._first = started.start("ps-0", "psruntime.ps", "--index", "0", "--coordinator", "127.0.0.1:0", *job)
        self._at = ["--coordinator", started.line_with(self._first, "READY coordinator").split()[3]]
        for index in range(1, ps):
            self.start_ps(index, f"ps-{index}")
        model = ["--model", embedding_tables.__name__, "--batch-size", str(BATCH_SIZE)]
        for index in range(WORKERS):
            started.start(f"worker-{index}", "psruntime.worker", "--index", str(index), *self._at, *model)
        for index in range(WORKERS):
            self.await_line(" first_step ", f"worker-{index}")
        self.start_s = time.time() - self.began_s

    def start_ps(self, index: int, name: str) -> None:
        self.started.start(name, "psruntime.ps", "--index", str(index), *self._at)

    def await_line(self, text: str, *names: str, after_s: float = 0.0) -> str:
        """The first line with a text in the logs of these processes, or of all workers, that is not older."""
        logs = [self.started.log(name) for name in names or [f"worker-{index}" for index in range(WORKERS)]]

        def look() -> str | None:
            found = (line for log in logs for line in lines(log) if text in line and line[:2] == "20")
            return next((line for line in found if seconds_of(line.split()[0]) >= after_s), None)

        return self.started.wait_for(f"'{text}'", look, STARTS_S)

    def logged(self, text: str) -> list[str]:
        return [line for index in range(WORKERS) for line in lines(self.started.log(f"worker-{index}")) if text in line]

    def whole(self) -> str | None:
        """The line of a checkpoint that is no delta, once it is written."""
        return next((line for line in self.logged(" checkpoint path=") if ".delta-" not in line), None)

    @property
    def peaks(self) -> dict[str, float]:
        """GB of each process that has not ended."""
        pids = self.started.pids.items()
        live = {name: pid for name, pid in pids if PEAK in Path(f"/proc/{pid}/status").read_text()}
        return {name: round(status_bytes(pid, PEAK) / 1e9, 2) for name, pid in live.items()}


def measure(tables: Tables, replicated: Tables, seconds: float, say: Progress) -> dict[str, Any]:
    """Results by phase."""
    with tempfile.TemporaryDirectory() as folder:
        settings = ["--checkpoint-dir", folder, "--save-steps", "1000000", "--save-secs", "0"]
        settings += ["--delta-every", str(DELTA_EVERY), "--stop-grace", str(STARTS_S)]
        with processes(tables.environment()) as started:
            job = Job(started, 2, *settings)
            result: dict[str, Any] = {"start": {"seconds": round(job.start_s, 1), "peak_gb": job.peaks}}
            result["start"]["checkpoint_gb"] = gigabytes_of(folder, whole=True)
            say(f"start: {result['start']}")
            time.sleep(seconds)
            job.await_line(" checkpoint path=")
            deltas = [facts_of(line, "rows", "copy_s", "write_s") for line in job.logged(" checkpoint path=")]
            result["train"] = {"peak_gb": job.peaks, "deltas": deltas, "delta_gb": gigabytes_of(folder, whole=False)}
            say(f"train: {result['train']}")
        with processes(tables.environment()) as started:
            job = Job(started, 3, *settings)
            restored = job.await_line(" restored ")
            result["restore on 3 ps"] = {"seconds": round(job.start_s, 1), "line": restored, "peak_gb": job.peaks}
            say(f"restore on 3 ps: {result['restore on 3 ps']}")
            time.sleep(seconds / 2)
            deltas = [facts_of(line, "rows", "copy_s", "write_s") for line in job.logged(" checkpoint path=")]
            result["train on 3 ps"] = {"peak_gb": job.peaks, "deltas": deltas}
            say(f"train on 3 ps: {result['train on 3 ps']}")
            os.kill(started.pids["ps-0"], signal.SIGTERM)
            last = started.wait_for("the last checkpoint", job.whole, STARTS_S)
            result["last checkpoint"] = {**facts_of(last, "copy_s", "write_s"), "peak_gb": job.peaks}
            say(f"last checkpoint: {result['last checkpoint']}")
    with processes(replicated.environment()) as started:
        job = Job(started, 2, "--replicate-every", str(REPLICATE_EVERY))
        time.sleep(seconds)
        before = job.peaks
        started.kill("ps-1")
        killed_s = time.time()
        job.start_ps(1, "ps-1.1")
        restored = job.await_line(" restored ", after_s=killed_s)
        took_s = seconds_of(restored.split()[0]) - killed_s
        result["loss of a ps"] = {
            "tables_gb": gigabytes(replicated), "seconds": round(took_s, 1), "line": restored,
            "peak_gb_before": before, "peak_gb": job.peaks,
        }  # fmt: skip
        say(f"loss of a ps: {result['loss of a ps']}")
    return {"workload": f"{tables}: {gigabytes(tables):.2f} GB", "each": result}


def facts_of(line: str, *names: str) -> dict[str, float]:
    """Those of a line of the log."""
    return {name: float(found[1]) for name in names if (found := re.search(rf" {name}=([\d.]+)", line))}


def gigabytes_of(folder: str, whole: bool) -> float:
    files = [file for file in Path(folder).glob("model.ckpt-*") if (".delta-" not in file.name) == whole]
    return round(sum(file.stat().st_size for file in files) / 1e9, 3)


def gigabytes(tables: Tables) -> float:
    return tables.count * tables.rows * tables.width * 4 / 1e9


def of_size(size_gb: float, count: int, width: int) -> Tables:
    return Tables(count, int(size_gb * 1e9 / (count * width * 4)), width, optimizer="rowwise-adagrad")


def text_of(result: dict[str, Any]) -> str:
    return "\n".join([result["workload"], *(f"  {phase}: {facts}" for phase, facts in result["each"].items())])


def main() -> None:
    parser = parser_of(__doc__, f"some minutes, with {QUICK} whatever else is given")
    parser.add_argument("--gigabytes", type=float, default=10.0, help="of the tables with checkpoints")
    parser.add_argument("--replicated-gigabytes", type=float, default=4.0, help="of those with replicas")
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60.0, help="of training")
    given = parser.parse_args()
    if given.quick:
        vars(given).update(QUICK)
    sizes = (given.gigabytes, given.replicated_gigabytes)
    tables, replicated = (of_size(size, given.tables, given.width) for size in sizes)
    print_result(given, lambda say: measure(tables, replicated, given.seconds, say), text_of)


if __name__ == "__main__":
    main()
