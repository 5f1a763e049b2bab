"""The processes of a job on this machine, as data: names and command lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from psruntime.config.process import TEXT_LOG
from psruntime.config.settings import as_flags
from psruntime.launch.config import LauncherConfig


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
