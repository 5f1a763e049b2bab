"""What a user can set of one process: where it stands, what a worker runs, and what protects its calls.

Units are in the names, as in job_settings.py, which has the settings of the job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any

from psruntime.config.devices import GpuLimit, device_names
from psruntime.config.settings import check_values, flag_of, setting
from psruntime.errors import UsageError

DEFAULT_COORDINATOR = "127.0.0.1:2222"
DEFAULT_MODEL = "psruntime.examples.digits"
TEXT_LOG, JSON_LOG = LOG_FORMATS = ("text", "json")
PORT: dict[str, Any] = {"least": 0, "most": 65535}  # the range of a port
_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True)
class ProcessConfig:
    """Where one process stands: its index, the coordinator it talks to, and its own addresses.

    `host` is the address at which the other processes reach this one; empty means the local address
    of the route to the coordinator.  Port 0 lets the system choose.
    """

    index: int = setting("job", MISSING, "index of this process in its role, from 0", least=0)
    coordinator: str = setting(
        "network", DEFAULT_COORDINATOR, "address of the coordinator, in ps 0", metavar="HOST:PORT"
    )
    host: str = setting(
        "network", "", "address at which others reach this process",
        metavar="ADDRESS", default_is="that of the route to the coordinator",
    )  # fmt: skip
    port: int = setting("network", 0, "port of TensorFlow's server", default_is="any free one", **PORT)
    health_port: int = setting(
        "network", 0, "port of the health service; of ps 0 the coordinator's", default_is="any free one", **PORT
    )
    metrics_port: int | None = setting(
        "network", None, "port of this process's metrics for Prometheus; 0: any free one", default_is="none", **PORT
    )
    connect_timeout_s: float = setting(
        "network", 60.0, "time to reach the coordinator at the start; give more than ps 0 takes to start", least=0.0
    )
    log_format: str = setting(
        "job", TEXT_LOG, "form of the log on stderr: text, or one JSON object a line", choices=LOG_FORMATS
    )

    def __post_init__(self) -> None:
        check_values(self)
        split_address(self.coordinator)


@dataclass(frozen=True)
class WorkerConfig:
    """What a worker runs: the module with the model, and what its `input_fn` receives."""

    model: str = setting("data and model", DEFAULT_MODEL, "module with input_fn and model_fn", metavar="MODULE")
    data_dir: str = setting("data and model", "", "context.data_dir of input_fn", metavar="FOLDER")
    batch_size: int = setting("data and model", 64, "examples in a batch", least=1)
    seed: int = setting("data and model", 0, "seed of the input, from which context.seed is made")
    eval_batches: int | None = setting(
        "data and model", None, "batches of the held-out data that an evaluation takes, at most",
        default_is="all", least=1,
    )  # fmt: skip
    devices: str = setting(
        "data and model", "", "devices of a worker, each with a mini-batch in every step, as gpu:0,gpu:1 or "
        "cpu:0,cpu:1 or gpu:all; gpu:auto: one GPU for each worker of a machine",
        metavar="DEVICES", default_is="the one that TensorFlow chooses",
    )  # fmt: skip
    local_rank: int | None = setting(
        "data and model", None, "number of this worker on its machine, by which gpu:auto chooses the GPU",
        default_is="its index", least=0,
    )  # fmt: skip
    gpu_memory: str = setting(
        "data and model", "", "limit of the memory on each GPU, as 20GiB or the fraction 0.4; 20GiB,20GiB makes two "
        "virtual GPUs", metavar="AMOUNT", default_is="what it needs, as it grows",
    )  # fmt: skip

    record: str = setting(
        "job", "", "file with a line of JSON for each update of this worker; {worker} in FILE is its index, else put "
        "before the suffix; Parquet if it ends with .parquet", metavar="FILE",
    )  # fmt: skip
    slowdown: float = setting(
        "job", 1.0, "multiple of its duration that each step takes, by pauses", metavar="TIMES", least=1.0
    )

    def __post_init__(self) -> None:
        check_values(self)
        _ = self.device_names, self.gpu_limit

    @cached_property
    def device_names(self) -> tuple[str, ...]:
        """The names in `devices`."""
        return device_names(self.devices)

    @cached_property
    def gpu_limit(self) -> GpuLimit:
        """What `gpu_memory` says."""
        return GpuLimit.of(self.gpu_memory)


def _file(name: str, help: str, or_else: str = "") -> Any:  # noqa: A002
    default_is = f"the environment's PSRUNTIME_{name.upper()}{or_else}"
    return setting("security", "", help, metavar="FILE", default_is=default_is)


@dataclass(frozen=True)
class SecurityConfig:
    """What protects the control plane; nothing does by default.

    tls_ca, tls_cert, tls_key: PEM files for mutual TLS, all three or none.  token_file: file with the job's token.
    token: the token itself, which only the environment gives; `token_file` goes over it.
    """

    tls_ca: str = _file("tls_ca", "certificates of the trusted CAs (PEM)")
    tls_cert: str = _file("tls_cert", "certificate of this process (PEM)")
    tls_key: str = _file("tls_key", "its key (PEM)")
    token_file: str = _file(
        "token_file", "file with the job's token, its only line", ", or the token in PSRUNTIME_TOKEN"
    )
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        given = {flag_of(name): bool(getattr(self, name)) for name in ("tls_ca", "tls_cert", "tls_key")}
        missing = [flag for flag, there in given.items() if not there]
        if 0 < len(missing) < len(given):
            raise UsageError(f"{', '.join(given)} belong together; missing: {', '.join(missing)}")

    @classmethod
    def of(cls, given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> SecurityConfig:
        """The settings in `given`; of those that are empty there, PSRUNTIME_TLS_CA and so on of the environment."""
        from_environment = {f.name: environment.get(f"PSRUNTIME_{f.name.upper()}", "") for f in fields(cls)}
        return cls(**{**from_environment, **{name: value for name, value in given.items() if value}})


def split_address(address: str) -> tuple[str, int]:
    """Splits `host:port`; an IPv6 host stands in brackets.

    Raises:
        UsageError: the text has no port, or one out of range.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not _PORT.fullmatch(port) or int(port) > 65535:
        raise UsageError(f"address '{address}' is not host:port, for example {DEFAULT_COORDINATOR}")
    return host, int(port)
