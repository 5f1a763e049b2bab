"""Jobs that train embedding tables, side by side: ours, stock TensorFlow's, the same fused by hand,
ParameterServerStrategy's, TorchRec's, and that of TensorFlow Recommenders Addons.  Each is run for so many seconds and
gives what was measured of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import async_steps, embedding_tables, strategy_tables
from benchmarks.jobs import coordinator_of, our_job, stock_job
from benchmarks.measured import Measured, await_training, measured, measured_now
from benchmarks.peer_environment import ENVIRONMENTS
from benchmarks.processes import Processes, free_addresses, processes
from benchmarks.ps_traffic import largest_share, told_from_now
from benchmarks.table_data import Tables
from psruntime.rpc.client.coordinator_client import CoordinatorClient

OURS = "ours"
LAZY = {"adam": "lazy-adam"}  # what ours has instead of an optimizer that moves all rows in each step


@dataclass(frozen=True)
class TableWork:
    """A job on tables, see jobs.Work.  mode: async or sync."""

    tables: Tables
    mode: str
    ps: int
    workers: int
    batch_size: int
    model: str = embedding_tables.__name__

    def __str__(self) -> str:
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return f"{self.mode}: {self.tables}, batches of {self.batch_size}, {self.ps} ps, {workers}"

    @property
    def settings(self) -> tuple[str, ...]:
        return ("--mode", self.mode, "--min-workers", str(self.workers))

    @property
    def environment(self) -> dict[str, str]:
        return self.tables.environment()

    def with_tables(self, **changes: Any) -> TableWork:
        return replace(self, tables=replace(self.tables, **changes))


@dataclass(frozen=True)
class TableRun:
    """ps_share: the largest share that a ps had of the bytes of all, over an even one; None: not known, or a peer's."""

    measured: Measured
    ps_share: float | None = None

    def __str__(self) -> str:
        share = "" if self.ps_share is None else f", largest share of a ps {self.ps_share:.3f} times an even one"
        return f"{self.measured}{share}"


def ours(work: TableWork, seconds: float) -> TableRun:
    return ours_as_named(work.with_tables(optimizer=LAZY.get(work.tables.optimizer, work.tables.optimizer)), seconds)


def ours_as_named(work: TableWork, seconds: float) -> TableRun:
    """Ours, under the optimizer that the work names, whatever it costs."""
    with processes(work.environment) as started:
        start_worker = our_job(started, work)
        logs = [start_worker(index) for index in range(work.workers)]
        await_training(started, logs)
        with closing(CoordinatorClient(coordinator_of(started))) as coordinator:
            before = told_from_now(started, coordinator)
            measured = measured_now(started, logs, seconds)
            return TableRun(measured, largest_share(before, told_from_now(started, coordinator)))


def stock(work: TableWork, seconds: float) -> TableRun:
    """Between graphs, each table cut over the ps by a partitioner; in mode sync with SyncReplicasOptimizer."""
    return TableRun(async_steps.stock(work.with_tables(parts=work.ps), seconds, work.mode))


def fused(work: TableWork, seconds: float) -> TableRun:
    """As stock, with all tables in one variable, of which one lookup takes each row once."""
    return stock(work.with_tables(fused=True), seconds)


def strategy(work: TableWork, seconds: float) -> TableRun:
    return TableRun(async_steps.strategy(work, seconds, strategy_tables.__name__))


def tfra(work: TableWork, seconds: float) -> TableRun:
    """Between graphs with dynamic embeddings, see tfra_tables.py."""
    program = "benchmarks.tfra_tables"
    work = replace(work.with_tables(parts=work.ps), model=program)
    with processes(work.environment) as started:
        start_worker = stock_job(started, work, program=program, python=ENVIRONMENTS["tfra"].run)
        return TableRun(measured(started, [start_worker(index) for index in range(work.workers)], seconds))


def torchrec(work: TableWork, seconds: float) -> TableRun:
    """Workers alone, see torchrec_tables.py."""
    with processes(torchrec_environment(work)) as started:
        return TableRun(measured(started, torchrec_job(started, work), seconds))


def torchrec_environment(work: TableWork) -> dict[str, str]:
    """One thread for an operation, as torchrun has it for several workers; with more they wait for one another."""
    return {**work.environment, "OMP_NUM_THREADS": "1"}


def torchrec_job(started: Processes, work: TableWork, *flags: str) -> list[Path]:
    """The logs of the workers.  flags: of torchrec_tables.py."""
    (address,) = free_addresses(1)
    command = ["benchmarks.torchrec_tables", "--address", address, "--workers", str(work.workers)]
    command += ["--batch-size", str(work.batch_size), *flags, "--index"]
    python = ENVIRONMENTS["torchrec"].run
    return [started.start(f"worker-{index}", *command, str(index), python=python) for index in range(work.workers)]


Run = Callable[[TableWork, float], TableRun]  # raises LateError: a process failed, or hangs
PEERS: dict[str, Run] = {"stock": stock, "fused": fused, "strategy": strategy, "torchrec": torchrec, "tfra": tfra}
RUNS: dict[str, Run] = {OURS: ours, **PEERS}
LIMITED = {  # (modes, optimizers) of peers that do not have all of them
    "strategy": (("async",), ("adagrad",)),
    "torchrec": (("async", "sync"), ("adagrad", "rowwise-adagrad", "sgd")),
    "tfra": (("async",), ("adagrad", "adam", "sgd")),
}


def peers_of(work: TableWork, peers: list[str]) -> list[str]:
    """Those that do such work."""

    def does(name: str) -> bool:
        modes, optimizers = LIMITED.get(name, ((work.mode,), (work.tables.optimizer,)))
        return work.mode in modes and work.tables.optimizer in optimizers

    return [name for name in peers if does(name)]


def called(work: TableWork, peer: str) -> str:
    """The peer's name, with a remark where it does the work in another mode."""
    return f"{peer}, synchronous" if peer == "torchrec" and work.mode != "sync" else peer


def with_environment(peers: list[str]) -> tuple[list[str], list[str]]:
    """(those that can be measured here, a line for each that cannot)."""
    lacks = {name: ENVIRONMENTS[name].lacks() if name in ENVIRONMENTS else None for name in peers}
    return [name for name in peers if not lacks[name]], [
        f"{name}: skipped: {why}" for name, why in lacks.items() if why
    ]
