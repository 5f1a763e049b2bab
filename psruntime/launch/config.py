"""The settings of `psruntime run` besides the job's: the number of workers, the folder of their logs, restarts."""

from __future__ import annotations

from dataclasses import dataclass

from psruntime.config.process import LOG_FORMATS, PORT, TEXT_LOG, split_address
from psruntime.config.settings import check_values, setting


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
