"""Jobs that the benchmarks compare: ours, stock TensorFlow's and ParameterServerStrategy's, with any model.

Each is started alike: first what holds the variables, then worker after worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks import layer_stack, strategy_layers
from benchmarks.processes import PYTHON, Processes, free_addresses
from benchmarks.step_times import step_times

BATCH_SIZE = 32
START_S = 300.0  # from the start to the first step of the last worker

StartWorker = Callable[[int], Path]  # starts a worker, by index, and gives its log


class Work(Protocol):
    """What a job does; str() is what it is called.

    model: module, of ours and of stock's.  settings: of ours, as flags.  environment: of its processes, beside ours.
    """

    @property
    def ps(self) -> int: ...
    @property
    def workers(self) -> int: ...
    @property
    def model(self) -> str: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def settings(self) -> tuple[str, ...]: ...
    @property
    def environment(self) -> dict[str, str]: ...


@dataclass(frozen=True)
class Workload:
    """Work on layer_stack, or on a model made of it.  total_bytes: of all variables, about."""

    variables: int
    total_bytes: int
    ps: int
    workers: int
    model: str = layer_stack.__name__
    batch_size: int = BATCH_SIZE
    settings: tuple[str, ...] = ()
    optimizer: str = layer_stack.ADAM

    def __str__(self) -> str:
        held = layer_stack.held_bytes(self.variables, self.total_bytes)
        return (
            f"async: {self.variables} dense variables of {held} bytes together, {self.optimizer}, "
            f"batches of {self.batch_size}, {self.ps} ps, {self.workers} workers"
        )

    @property
    def environment(self) -> dict[str, str]:
        return layer_stack.environment(self.variables, self.total_bytes, self.optimizer)


@dataclass(frozen=True)
class Machine:
    """enter: command to which one is given that shall run there."""

    host: str = "127.0.0.1"
    enter: tuple[str, ...] = ()


HERE = Machine()


def nothing_more(name: str) -> tuple[str, ...]:  # noqa: ARG001
    return ()


def start_ps(
    started: Processes,
    work: Work,
    *settings: str,
    ps_on: Machine = HERE,
    flags_of: Callable[[str], tuple[str, ...]] = nothing_more,
) -> None:
    """All ps of a job of ours."""
    job = ["--ps", str(work.ps), *work.settings, *settings]
    if ps_on != HERE:
        job.append("--insecure")

    def start(index: int, *flags: str) -> None:
        name = f"ps-{index}"
        command = ["psruntime.ps", "--index", str(index), "--host", ps_on.host, *flags, *flags_of(name)]
        started.start(name, *command, enter=ps_on.enter)

    start(0, "--coordinator", f"{ps_on.host}:0", *job)
    for i in range(1, work.ps):
        start(i, "--coordinator", coordinator_of(started))


def our_job(
    started: Processes,
    work: Work,
    *settings: str,
    ps_on: Machine = HERE,
    workers_on: Machine = HERE,
    flags_of: Callable[[str], tuple[str, ...]] = nothing_more,
) -> StartWorker:
    """flags_of: flags of each process by its name, as ps-0 or worker-1."""
    start_ps(started, work, *settings, ps_on=ps_on, flags_of=flags_of)
    coordinator = ["--coordinator", coordinator_of(started)]
    model = ["--host", workers_on.host, "--model", work.model, "--batch-size", str(work.batch_size)]

    def start_worker(index: int) -> Path:
        name = f"worker-{index}"
        command = ["psruntime.worker", "--index", str(index), *coordinator, *model, *flags_of(name)]
        return started.start(name, *command, enter=workers_on.enter)

    return start_worker


def coordinator_of(started: Processes) -> str:
    """Its address, once it serves; of a job of ours."""
    return started.line_with(started.log("ps-0"), "READY coordinator").split()[3]


def stock_job(
    started: Processes,
    work: Work,
    *,
    mode: str = "async",
    ps_on: Machine = HERE,
    workers_on: Machine = HERE,
    program: str = "benchmarks.stock_layers",
    python: Sequence[str] = PYTHON,
) -> StartWorker:
    """Starting worker 0 takes until it has made the variables.  mode: async or sync, as stock_layers.py has them.

    program: has the flags of stock_layers.py.
    """
    ports = [address.rpartition(":")[2] for address in free_addresses(work.ps + work.workers)]
    ps = ",".join(f"{ps_on.host}:{port}" for port in ports[: work.ps])
    workers = ",".join(f"{workers_on.host}:{port}" for port in ports[work.ps :])
    cluster = ["--mode", mode, "--ps", ps, "--workers", workers, "--batch-size", str(work.batch_size)]
    command = [program, *cluster, "--model", work.model, "--role"]
    for i in range(work.ps):
        started.start(f"ps-{i}", *command, "ps", "--index", str(i), enter=ps_on.enter, python=python)

    def start_worker(index: int) -> Path:
        log = started.start(
            f"worker-{index}", *command, "worker", "--index", str(index), enter=workers_on.enter, python=python
        )
        if index == 0:
            started.wait_for("the variables", lambda: step_times(log) or None, START_S)
        return log

    return start_worker


def script_job(started: Processes, work: Work) -> StartWorker:
    """The peer's script in a job of ours, in mode async."""
    start_ps(started, work, "--min-workers", str(work.workers))
    workers = ",".join(free_addresses(work.workers))
    ps = ",".join(free_addresses(work.ps))
    command = ["benchmarks.script_layers", coordinator_of(started), "--mode", "async", "--role", "worker"]
    command += ["--ps", ps, "--workers", workers, "--batch-size", str(work.batch_size), "--model", work.model]

    def start_worker(index: int) -> Path:
        return started.start(f"worker-{index}", *command, "--index", str(index))

    return start_worker


def strategy_job(started: Processes, work: Work, model: str = strategy_layers.__name__) -> Path:
    """All processes; the log of the chief, which counts the steps of all workers.  model: module, see strategy.py."""
    chief, *addresses = free_addresses(1 + work.ps + work.workers)
    ps, workers = ",".join(addresses[: work.ps]), ",".join(addresses[work.ps :])
    cluster = ["--chief", chief, "--ps", ps, "--workers", workers, "--batch-size", str(work.batch_size)]
    command = ["benchmarks.strategy", *cluster, "--model", model, "--role"]
    for role, count in (("ps", work.ps), ("worker", work.workers)):
        for i in range(count):
            started.start(f"{role}-{i}", *command, role, "--index", str(i))
    return started.start("chief", *command, "chief", "--index", "0")
