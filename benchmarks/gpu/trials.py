"""Trials whose speed is measured: jobs of ours, and plain TensorFlow in one process on the same GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.gate import GATE
from benchmarks.jobs import our_job
from benchmarks.measured import LEAST_LINES, Measured, measured_now
from benchmarks.processes import LateError, Processes, processes
from benchmarks.step_times import step_times
from psruntime.process.machine import VISIBLE, gib_text, gpus

START_S = 100.0  # for all processes that start beside each other to make their first steps
WARM_UP_S = 1.5
PLAIN, OURS = "plain TensorFlow", "psruntime"


@dataclass(frozen=True)
class Trial:
    """A job, as benchmarks.jobs has it, or with `ps` 0 the model in one process of plain TensorFlow.

    title: what is trained.  variant: how.  worker_flags: of each worker.  environment: of all its processes.
    """

    title: str
    variant: str
    model: str
    batch_size: int
    ps: int = 1
    workers: int = 1
    settings: tuple[str, ...] = ()
    worker_flags: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.title}, {self.variant}"


def _of(name: str) -> str:
    return f"benchmarks.gpu.{name}"


BF16, PIPELINE = ("--wire", "bfloat16"), ("--pipeline", "2")
SLICES = ("--slice-bytes", str(4 << 20))
NO_GPU = {VISIBLE: "-1"}
MLP, MOBILENET, DLRM = "MLP of 76 MB, batch 4096", "MobileNetV2, 96 x 96, batch 64", "DLRM, 26 tables, batch 8192"
RESNET, TINY = "ResNet-50, 224 x 224, batch 64", "Tiny, 55 tables of 4.2 GiB, batch 65536"

# Each group starts together.
GROUPS: tuple[tuple[Trial, ...], ...] = (
    (
        Trial(MLP, PLAIN, _of("wide_mlp"), 4096, ps=0),
        Trial(MLP, "1 ps", _of("wide_mlp"), 4096),
        Trial(MLP, "4 ps", _of("wide_mlp"), 4096, 4, settings=SLICES),
        Trial(MLP, "4 ps, pipeline 2", _of("wide_mlp"), 4096, 4, settings=(*SLICES, *PIPELINE)),
        Trial(MLP, "4 ps, pipeline 2, bfloat16 wire", _of("wide_mlp"), 4096, 4, settings=(*SLICES, *PIPELINE, *BF16)),
    ),
    (
        Trial(MOBILENET, PLAIN, _of("mobilenet"), 64, ps=0),
        Trial(MOBILENET, "1 worker", _of("mobilenet"), 64),
        Trial(MOBILENET, "2 workers", _of("mobilenet"), 64, workers=2),
        Trial(MOBILENET, "4 workers", _of("mobilenet"), 64, workers=4),
        Trial(MOBILENET, "2 workers, sync", _of("mobilenet"), 64, workers=2, settings=("--mode", "sync")),
    ),
    (
        Trial(DLRM, PLAIN, _of("dlrm"), 8192, ps=0),
        Trial(DLRM, "2 ps", _of("dlrm"), 8192, 2),
        Trial(DLRM, "2 ps, on the CPU", _of("dlrm"), 8192, 2, environment=NO_GPU),
        Trial(RESNET, PLAIN, _of("resnet"), 64, ps=0),
        Trial(RESNET, "4 ps, pipeline 2", _of("resnet"), 64, 4, settings=(*SLICES, *PIPELINE)),
    ),
    (
        Trial(TINY, PLAIN, _of("tiny"), 65536, ps=0),
        Trial(TINY, "4 ps", _of("tiny"), 65536, 4),
    ),
)


@dataclass(frozen=True)
class Result:
    """measured: None, with why, if it was not.  held_bytes: of GPU memory, of each worker that holds some."""

    trial: Trial
    measured: Measured | None
    why: str = ""
    held_bytes: tuple[int, ...] = ()
    ps_on_gpu: bool = False

    @property
    def examples_per_s(self) -> float:
        return self.measured.rate * self.trial.batch_size if self.measured else 0.0

    def facts(self) -> dict[str, Any]:
        """For a file of JSON."""
        measured = self.measured
        return {
            "trial": str(self.trial),
            "steps_per_s": measured.rate if measured else None,
            "examples_per_s": self.examples_per_s or None,
            "step_bytes": measured.step_bytes if measured else None,
            "cpu_ms": dict(measured.cpu_ms) if measured else None,
            "held_bytes": self.held_bytes,
            "ps_on_gpu": self.ps_on_gpu,
            "why": self.why,
        }


def measured_group(trials: Sequence[Trial], seconds: float) -> Iterator[Result]:
    """Starts all, lets one after the other train alone for so many seconds, and ends each."""
    with ExitStack() as stack:
        gates = Path(stack.enter_context(TemporaryDirectory()))
        running = []
        for number, trial in enumerate(trials):
            gate = gates / str(number)
            started = stack.enter_context(processes({**trial.environment, GATE: str(gate)}))
            running.append((trial, started, _start(trial, started), gate))
        for trial, started, logs, gate in running:
            try:
                yield _measure(trial, started, logs, gate, seconds)
            except LateError as error:
                yield Result(trial, None, str(error))
            finally:
                started.end()


def _start(trial: Trial, started: Processes) -> list[Path]:
    """The logs of the workers."""
    if not trial.ps:
        words = ("benchmarks.gpu.plain", "--model", trial.model, "--batch-size", str(trial.batch_size))
        return [started.start("worker-0", *words)]
    start_worker = our_job(
        started, trial, "--min-workers", str(trial.workers),
        flags_of=lambda name: trial.worker_flags if name.startswith("worker") else (),
    )  # fmt: skip
    return [start_worker(index) for index in range(trial.workers)]


def _measure(trial: Trial, started: Processes, logs: list[Path], gate: Path, seconds: float) -> Result:
    started.wait_for("every worker's first step", lambda: all(map(step_times, logs)) or None, START_S)
    gate.touch()
    began_s = time.time()

    def has_warmed_up() -> bool | None:
        enough = all(sum(t > began_s for _, t in step_times(log)) >= LEAST_LINES for log in logs)
        return (enough and time.time() > began_s + WARM_UP_S) or None

    started.wait_for("some steps", has_warmed_up, START_S)
    measured = measured_now(started, logs, seconds)
    held = {pid: held for gpu in gpus() for pid, held in gpu.held_bytes.items()}
    of_workers = tuple(held[pid] for name, pid in started.pids.items() if name.startswith("worker") and pid in held)
    on_gpu = any(name.startswith("ps") and pid in held for name, pid in started.pids.items())
    return Result(trial, measured, "", of_workers, on_gpu)


def table(results: Sequence[Result]) -> str:
    """Lines of Markdown; the last column compares with plain TensorFlow on the same model."""
    plain = {r.trial.title: r.examples_per_s for r in results if not r.trial.ps and r.measured}
    lines = [
        "| work | how | examples/s | steps/s of a worker | MB a step | ms of the processor, worker and ps | GPU memory "
        "| of plain |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        measured, trial = result.measured, result.trial
        if measured is None:
            lines.append(f"| {trial.title} | {trial.variant} | not measured: {result.why.splitlines()[0]} | | | | | |")
            continue
        moved = f"{measured.step_bytes / 1e6:.1f}" if measured.step_bytes and trial.ps else ""
        cpu = ", ".join(f"{measured.cpu_ms[role]:.1f}" for role in ("worker", "ps") if role in measured.cpu_ms)
        held = ", ".join(map(gib_text, result.held_bytes)) + (" and a ps" if result.ps_on_gpu else "")
        peer = plain.get(trial.title)
        ratio = f"{result.examples_per_s / peer:.2f}" if peer and trial.ps else ""
        rate = measured.rate / trial.workers
        lines.append(
            f"| {trial.title} | {trial.variant} | {result.examples_per_s:,.0f} | {rate:.1f} | {moved} | {cpu} | {held} "
            f"| {ratio} |"
        )
    return "\n".join(lines)


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))
