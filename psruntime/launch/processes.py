"""The processes of a job on this machine: how many, their names and command lines, where their logs go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from psruntime.config.process import LOG_FORMATS, PORT, TEXT_LOG, split_address
from psruntime.config.settings import as_flags, check_values, setting


@dataclass(frozen=True)
class LauncherConfig:
    """Which processes `psruntime run` starts on this machine, and how it supervises them."""

    workers: int = setting("job", 1, "number of worker processes", least=1)
    log_dir: str = setting("job", "", "folder of the log files", metavar="FOLDER", default_is="a new temporary one")
    log_format: str = setting(
        "job", TEXT_LOG, "form of the log files: text, or one JSON object a line", choices=LOG_FORMATS
    )
    restart: int = setting("faults", 0, "how often each process that crashes is started again", least=0)
    coordinator: str = setting(
        "network", "127.0.0.1:0", "address of the coordinator", metavar="HOST:PORT",
        default_is="any free port of 127.0.0.1",
    )  # fmt: skip
    metrics_port: int | None = setting(
        "network", None, "port at which Prometheus reads the metrics of ps 0; the other ps have the next ones, then "
        "the workers; 0: each any free one", default_is="none", **PORT,
    )  # fmt: skip
    connect_timeout_s: float = setting("network", 60.0, "how long a process tries to reach the coordinator", least=0.0)

    def __post_init__(self) -> None:
        check_values(self)
        split_address(self.coordinator)


@dataclass(frozen=True)
class ProcessSpec:
    """One process: its name, which is that of its log file too, and its arguments of `python -m`."""

    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class LocalJob:
    """A job on this machine, as settings of its processes.

    job: those of ps 0, which the others fetch from it.  worker: those of each worker.  security: those of all.
    own: worker index -> the settings of that worker alone.
    """

    launcher: LauncherConfig
    ps: int
    job: Mapping[str, Any]
    worker: Mapping[str, Any]
    security: Mapping[str, str]
    insecure: bool
    own: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    def first(self, coordinator: str) -> ProcessSpec:
        """ps 0, with the coordinator at this address."""
        insecure = ("--insecure",) if self.insecure else ()
        return self._process("ps", 0, coordinator, insecure + as_flags(self.job))

    def others(self, coordinator: str) -> list[ProcessSpec]:
        """All processes but ps 0."""
        timeout = as_flags({"connect_timeout_s": f"{self.launcher.connect_timeout_s:g}"})
        return [
            *(self._process("ps", index, coordinator, timeout) for index in range(1, self.ps)),
            *(
                self._process("worker", index, coordinator, timeout + self._flags_of(index))
                for index in range(self.launcher.workers)
            ),
        ]

    def progress(self, coordinator: str) -> tuple[str, ...]:
        """The arguments of the process that shows the progress line."""
        return ("psruntime", "status", "--follow", "--coordinator", coordinator, *as_flags(self.security))

    def _flags_of(self, worker: int) -> tuple[str, ...]:
        return as_flags({**self.worker, **self.own.get(worker, {})})

    def _process(self, role: str, index: int, coordinator: str, more: tuple[str, ...]) -> ProcessSpec:
        where: tuple[str, ...] = ("--index", str(index), "--coordinator", coordinator)
        if self.launcher.log_format != TEXT_LOG:
            where += as_flags({"log_format": self.launcher.log_format})
        if (first := self.launcher.metrics_port) is not None:
            place = index + (self.ps if role == "worker" else 0)
            where += as_flags({"metrics_port": first and first + place})
        return ProcessSpec(f"{role}-{index}", (f"psruntime.{role}", *where, *as_flags(self.security), *more))
