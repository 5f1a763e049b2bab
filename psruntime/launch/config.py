"""What `psruntime run` is told besides the job: how many workers, where their logs go, what is started again."""

from __future__ import annotations

from dataclasses import dataclass

from psruntime.config.process import LOG_FORMATS, TEXT_LOG, split_address
from psruntime.config.settings import at_least, check_choices, setting
from psruntime.errors import UsageError


@dataclass(frozen=True)
class LauncherConfig:
    """What `psruntime run` starts on this machine, and how it watches over it."""

    workers: int = setting("job", 1, "number of worker processes")
    log_dir: str = setting("job", "", "folder of the log files", metavar="FOLDER", default_is="a new temporary one")
    log_format: str = setting(
        "job", TEXT_LOG, "form of the log files: text, or one JSON object a line", choices=LOG_FORMATS
    )
    restart: int = setting("faults", 0, "how often each process that crashes is started again")
    coordinator: str = setting(
        "network", "127.0.0.1:0", "address of the coordinator", metavar="HOST:PORT",
        default_is="any free port of 127.0.0.1",
    )  # fmt: skip
    metrics_port: int | None = setting(
        "network", None, "port at which Prometheus reads the metrics of ps 0; the other ps have the next ones, then "
        "the workers; 0: each any free one", default_is="none",
    )  # fmt: skip
    connect_timeout_s: float = setting("network", 60.0, "how long a process tries to reach the coordinator")

    def __post_init__(self) -> None:
        check_choices(self)
        at_least("workers", self.workers, 1)
        at_least("restart", self.restart, 0)
        split_address(self.coordinator)
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65535:
            raise UsageError(f"metrics_port must be from 0 to 65535, got {self.metrics_port}")
        at_least("connect_timeout_s", self.connect_timeout_s, 0.0)
