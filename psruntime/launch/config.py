"""What `psruntime run` is told besides the job: how many workers, where their logs go, what is started again."""

from __future__ import annotations

from dataclasses import dataclass

from psruntime.config import LOG_FORMATS, TEXT_LOG, split_address
from psruntime.settings import at_least, check_choices, setting


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
    connect_timeout_s: float = setting("network", 60.0, "how long a process tries to reach the coordinator")

    def __post_init__(self) -> None:
        check_choices(self)
        at_least("workers", self.workers, 1)
        at_least("restart", self.restart, 0)
        split_address(self.coordinator)
        at_least("connect_timeout_s", self.connect_timeout_s, 0.0)
