"""Checks that workers on a GPU compute what they promise, and say what is wrong; all run beside each other.

    python -m benchmarks.gpu.checks NUMBER FOLDER

runs one, with its files in the folder, and prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu.trials import NO_GPU, Trial
from benchmarks.jobs import coordinator_of, our_job
from benchmarks.processes import PYTHON, LateError, Processes, lines, processes
from benchmarks.step_times import step_times

SMALL = "benchmarks.gpu.small_mlp"
ROUNDS = 1200
EXACT = 1e-5  # largest difference from the joint batch, over the largest entry of a variable
# TF32 rounds the factors of a matrix product to 10 bits; without it float32 is what it is on a CPU.
NO_TF32 = {"NVIDIA_TF32_OVERRIDE": "0"}
DETERMINISTIC = {**NO_TF32, "TF_DETERMINISTIC_OPS": "1"}
END_S = 90.0
ALL_S = 110.0  # for all checks


class Check(NamedTuple):
    """is_right: whether it found what is promised.  found: in words."""

    what: str
    is_right: bool
    found: str


def _trained(trial: Trial, folder: Path, disturb: Callable[[Processes, Callable[[int], Path]], None]) -> None:
    """Trains to the end, in mode sync, with a rounds log and checkpoints in the folder."""
    settings = (
        "--mode", "sync", "--min-workers", str(trial.workers), "--train-steps", str(ROUNDS), "--save-steps", "200",
        "--keep", "100", "--checkpoint-dir", str(folder), "--rounds-log", str(folder / "rounds.jsonl"), "--linger", "0",
    )  # fmt: skip
    with processes(trial.environment) as started:
        start_worker = our_job(started, trial, *settings, flags_of=lambda name: _own(trial, name))
        logs = [start_worker(index) for index in range(trial.workers)]
        started.wait_for("first rounds", lambda: all(map(step_times, logs)) or None, END_S)
        disturb(started, start_worker)
        started.wait_for("the end", lambda: _exited(started.log("ps-0")), END_S)


def _own(trial: Trial, name: str) -> tuple[str, ...]:
    return trial.worker_flags if name.startswith("worker") else ()


def _exited(log: Path) -> bool | None:
    return any(" exit code=0" in line for line in lines(log)) or None


def _undisturbed(started: Processes, start_worker: Callable[[int], Path]) -> None:
    """Nothing happens to the job."""


def _disturbed(started: Processes, start_worker: Callable[[int], Path]) -> None:
    """A worker is paused, then another killed and started again, then a ps, so that there is a new view."""
    _await_checkpoint(started)
    paused = started.pids["worker-0"]
    os.kill(paused, signal.SIGSTOP)
    time.sleep(2.0)
    os.kill(paused, signal.SIGCONT)
    started.kill("worker-1")
    log = start_worker(1)
    started.wait_for("its first round", lambda: step_times(log) or None, END_S)
    started.kill("ps-1")
    address = coordinator_of(started)
    started.start("ps-1", "psruntime.ps", "--index", "1", "--host", "127.0.0.1", "--coordinator", address)


def _await_checkpoint(started: Processes) -> None:
    """One of any worker, since any may be the chief."""

    def is_there() -> bool | None:
        logs = [started.log(name) for name in started.pids if name.startswith("worker")]
        return any(" checkpoint path=" in line for log in logs for line in lines(log)) or None

    started.wait_for("a checkpoint", is_there, END_S)


def _difference(trial: Trial, folder: Path) -> float:
    """Of the job's variables and slots from those of one process on the joint batches, on the CPU.

    Raises:
        LateError: it cannot be repeated.
    """
    of_workers = dict(zip(trial.worker_flags[::2], trial.worker_flags[1::2], strict=True))
    words = (
        "psruntime", "replay", str(folder / "rounds.jsonl"), "--checkpoint-dir", str(folder), "--model", trial.model,
        "--batch-size", str(trial.batch_size), "--min-workers", str(trial.workers), "--json",
        "--devices", of_workers.get("--devices", ""),
    )  # fmt: skip
    ran = subprocess.run(
        [*PYTHON, *words], capture_output=True, text=True, env={**os.environ, **NO_GPU}, timeout=END_S, check=False
    )
    found = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    if not found:
        raise LateError(f"replay ended with {ran.returncode}: {ran.stderr[-500:]}")
    return max(float(each) if each is not None else float("inf") for each in found[0]["differences"].values())


def _exact(
    what: str, trial: Trial, disturb: Callable[[Processes, Callable[[int], Path]], None] = _undisturbed
) -> Callable[[Path], Check]:
    def check(folder: Path) -> Check:
        _trained(trial, folder, disturb)
        difference = _difference(trial, folder)
        return Check(what, difference <= EXACT, f"{difference:.1e} from the joint batch after {ROUNDS} rounds")

    return check


def _full(folder: Path) -> Check:  # noqa: ARG001
    trial = Trial("", "", "benchmarks.gpu.wide_mlp", 65536, worker_flags=("--gpu-memory", "600MiB"))
    with processes() as started:
        log = our_job(started, trial, flags_of=lambda name: _own(trial, name))(0)

        def last() -> str | None:
            return next((line for line in lines(log) if " error " in line or " crash " in line), None)

        try:
            line = started.wait_for("the error", last, END_S)
        except LateError:
            line = last() or "no line"
        try:
            code = started.line_with(log, " exit code=").rpartition("=")[2]
        except LateError:
            code = next((each.rpartition("=")[2] for each in lines(log) if " exit code=" in each), "none")
    is_right = "out of memory on GPU:0" in line and code == "75"
    return Check("out of memory, with --gpu-memory 600MiB", is_right, f"code {code}: {line.partition('reason=')[2]}")


TWO = Trial("", "", SMALL, 64, ps=2, workers=2, environment=DETERMINISTIC)
CHECKS: tuple[Callable[[Path], Check], ...] = (
    _exact("sync, 2 workers on one GPU, deterministic, no TF32", TWO),
    _exact("the same, a worker paused, one killed, a ps killed", TWO, _disturbed),
    _exact(
        "sync, 2 workers, not deterministic, no TF32",
        Trial("", "", SMALL, 64, ps=2, workers=2, environment=NO_TF32),
    ),
    _exact(
        "towers on two virtual GPUs of one",
        Trial(
            "", "", SMALL, 64, ps=2, environment=DETERMINISTIC,
            worker_flags=("--devices", "gpu:0,gpu:1", "--gpu-memory", "2GiB,2GiB"),
        ),
    ),
    _full,
)  # fmt: skip


def checked(folder: Path) -> Iterator[Check]:
    """All, beside each other, in a process each; each has a folder of its own in `folder`."""
    running = []
    for number in range(len(CHECKS)):
        own = folder / str(number)
        own.mkdir()
        command = [*PYTHON, __name__, str(number), str(own)]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
    until_s = time.monotonic() + ALL_S
    for number, process in enumerate(running):
        try:
            out, _ = process.communicate(timeout=max(1.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.terminate()  # which ends what it has started
            out, _ = process.communicate()
        found = [line for line in out.splitlines() if line.startswith("[")]
        yield Check(*json.loads(found[-1])) if found else Check(f"check {number}", False, f"code {process.returncode}")


def main() -> None:
    number, folder = int(sys.argv[1]), Path(sys.argv[2])
    try:
        check = CHECKS[number](folder)
    except (LateError, subprocess.TimeoutExpired) as error:
        check = Check(f"check {number}", False, str(error))
    print(json.dumps(check))


if __name__ == "__main__":
    main()
