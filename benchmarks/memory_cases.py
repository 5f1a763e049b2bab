"""The cases of benchmarks.memory: what each has to hold, and what it holds."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from benchmarks import large_model
from benchmarks.jobs import START_S, StartWorker, Workload, our_job, stock_job
from benchmarks.processes import Processes, processes
from benchmarks.resident import RESIDENT, Watch, status_bytes
from benchmarks.step_times import step_times
from psruntime.config import JobConfig
from psruntime.core.plan.buckets import VariableSpec
from psruntime.core.plan.plan import make_plan

MODES = ("async", "bounded", "sync")
EXTRAS = ("nothing", "replicas", "checkpoint")
SLOTS = {"SGD": 0, "Adam": 2}  # variables of the optimizer, each as large as the model
ROLES = ("ps", "worker")
FIGURES = ("rest", "median", "peak")
REPLICATE_EVERY, SAVE_EVERY = 5, 10
WARM_UP = 5  # steps
REST_S = 1.5  # after the last step, until nothing is under way

Figures = dict[str, float]  # rest, median, peak: of what is resident


@dataclass(frozen=True)
class Case:
    """mode: None for the peer."""

    mode: str | None
    optimizer: str
    ps: int
    extra: str
    variables: int

    def __str__(self) -> str:
        extra = "" if self.extra == "nothing" else f", with {self.extra}"
        return f"{self.mode or 'stock'}, {self.optimizer}, {self.ps} ps, {self.variables} variables{extra}"

    @property
    def peer(self) -> Case:
        return Case(None, self.optimizer, self.ps, "nothing", self.variables)

    def buckets(self, total_bytes: int) -> int:
        """Of a model of so many bytes."""
        shape = (large_model.WIDTH, large_model.columns(self.variables, total_bytes))
        specs = [VariableSpec(f"kernel_{number}", shape, "float32", group=1) for number in range(self.variables)]
        job = JobConfig()
        return len(make_plan(specs, self.ps, *job.plan_sizes).buckets)

    def settings(self, folder: Path) -> list[str]:
        """Flags of ps 0."""
        given = ["--mode", str(self.mode)]
        if self.mode == "bounded":
            given += ["--bound", "4"]
        if self.extra == "replicas":
            given += ["--replicate-every", str(REPLICATE_EVERY)]
        if self.extra == "checkpoint":
            given += ["--checkpoint-dir", str(folder), "--save-steps", str(SAVE_EVERY), "--keep", "1"]
        return given

    def due(self, role: str) -> float:
        """Multiples of the model's bytes that have to be there: of all ps together, or of a worker."""
        if role == "worker":
            return 3.0 if self.mode == "sync" else 2.0
        held, is_sync = 1 + SLOTS[self.optimizer], self.mode == "sync"
        copies = {"nothing": 0, "replicas": 4 if is_sync else 3, "checkpoint": 1}[self.extra]
        return held + copies * held + is_sync


def multiples(case: Case, sizes: tuple[int, int], workers: int, steps: int) -> dict[str, Figures]:
    """By role: what each byte more of the model costs all ps together, or a worker.

    Raises:
        LateError: a process failed, or hangs.
    """
    smaller, larger = (resident(case, size, workers, steps) for size in sizes)
    less, more = (large_model.held_bytes(case.variables, size) for size in sizes)
    each = {
        name: {of: (figures[of] - smaller[name][of]) / (more - less) for of in FIGURES}
        for name, figures in larger.items()
    }
    by_role = {role: [figures for name, figures in each.items() if name.startswith(role)] for role in ROLES}
    together = {"ps": case.ps, "worker": 1}
    return {
        role: {of: together[role] * mean(figures[of] for figures in found) for of in FIGURES}
        for role, found in by_role.items()
    }


def resident(case: Case, total_bytes: int, workers: int, steps: int) -> dict[str, Figures]:
    """Bytes of each process by name, while the slowest worker makes so many steps, and afterwards.

    Raises:
        LateError: a process failed, or hangs.
    """
    work = Workload(case.variables, total_bytes, case.ps, workers, large_model.__name__, batch_size=1)
    with tempfile.TemporaryDirectory() as folder:
        hold = Path(folder) / "hold"
        with processes(large_model.environment(case.variables, total_bytes, case.optimizer, hold)) as started:
            start_worker = job_of(case, started, work)
            logs = [start_worker(index) for index in range(workers)]
            begun = await_steps(started, logs, WARM_UP)
            watch = Watch(started.pids)
            await_steps(started, logs, begun + steps, watch)
            seen = watch.seen()
            hold.touch()
            for log in logs:
                started.line_with(log, "held")
            time.sleep(REST_S)
            return {name: {**seen[name], "rest": status_bytes(pid, RESIDENT)} for name, pid in started.pids.items()}


def job_of(case: Case, started: Processes, work: Workload) -> StartWorker:
    if case.mode is None:
        return stock_job(started, work)
    return our_job(started, work, "--min-workers", str(work.workers), *case.settings(started.folder / "saved"))


def await_steps(started: Processes, logs: list[Path], count: int, watch: Watch | None = None) -> int:
    """Waits until every worker has made so many, looking at their memory meanwhile; the steps of the slowest."""

    def made() -> int | None:
        if watch:
            watch.look()
        slowest = min(max((done for done, _ in step_times(log)), default=0) for log in logs)
        return slowest if slowest >= count else None

    return started.wait_for(f"{count} steps", made, START_S)
