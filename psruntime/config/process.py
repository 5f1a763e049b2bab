"""What a user can set of one process: where it stands, what a worker runs and on which devices, what an evaluator
compares, and what protects its calls.

Units are in the names, as in job_settings.py, which has the settings of the job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any

from psruntime.config.settings import Params, check_values, flag_of, param_of, setting
from psruntime.config.values import Metric
from psruntime.errors import EXIT_RESTART, UsageError

ALL_GPUS, AUTO_GPU = "gpu:all", "gpu:auto"
MOST_CPUS = 64  # virtual ones are for trying things out: they share the machine's cores
_UNITS = {"GiB": 1 << 30, "GB": 10**9, "MiB": 1 << 20, "MB": 10**6}
_AMOUNT = re.compile(rf"([0-9]+(?:\.[0-9]+)?)({'|'.join(_UNITS)})")
LEAST_BYTES = 1 << 20
_DEVICE = re.compile(r"(cpu|gpu):(0|[1-9][0-9]{0,3})")


def device_names(text: str) -> tuple[str, ...]:
    """The names in `text`, which are lower-case `kind:number`, or `gpu:all` or `gpu:auto` alone; none if it is empty.

    Raises:
        UsageError: a name is no such, or stands there twice.
    """
    names = tuple(name.strip() for name in text.lower().split(",")) if text else ()
    if names in ((ALL_GPUS,), (AUTO_GPU,)):
        return names
    for name in names:
        if not _DEVICE.fullmatch(name):
            raise UsageError(
                f"devices must be cpu:N or gpu:N, with commas between them, gpu:all or gpu:auto; got '{name}'"
            )
        if names.count(name) > 1:
            raise UsageError(f"devices names {name} twice; each device computes one mini-batch of a step")
        if name.startswith("cpu") and number_of(name) >= MOST_CPUS:
            raise UsageError(f"devices goes up to cpu:{MOST_CPUS - 1}, got {name}")
    return names


def number_of(name: str) -> int:
    """That of `kind:number`."""
    return int(name.partition(":")[2])


@dataclass(frozen=True)
class GpuLimit:
    """share: fraction of each GPU's memory that a process may take; None: all that it needs.

    split_bytes: if it is not empty, each GPU is as many virtual ones, with so much memory each; TensorFlow numbers all
    of them through, gpu:0, gpu:1, ...
    """

    share: float | None = None
    split_bytes: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: str) -> GpuLimit:
        """Parses a fraction as `0.4`, an amount as `20GiB`, or amounts with commas between them.

        Raises:
            UsageError: it is none of them.
        """
        if not text:
            return cls()
        amounts = [_AMOUNT.fullmatch(each.strip()) for each in text.split(",")]
        found = tuple(int(float(amount[1]) * _UNITS[amount[2]]) for amount in amounts if amount)
        if len(found) == len(amounts) and min(found) >= LEAST_BYTES:
            return cls(split_bytes=found)
        try:
            share = float(text)
        except ValueError:
            share = 0.0
        if not 0 < share <= 1:
            raise UsageError(
                "gpu_memory must be an amount as 20GiB (GiB, GB, MiB or MB; at least 1 MiB), or a fraction of the "
                f"GPU's memory above 0 and up to 1, got '{text}'"
            )
        return cls(share=share)

    def limits(self, total_bytes: int | None) -> tuple[int, ...]:
        """Bytes of each device that a GPU with so much memory is made into; none: it is one, without a limit.

        Raises:
            UsageError: a fraction is wanted, and the memory of the GPU is not known.
        """
        if self.share is None:
            return self.split_bytes
        if total_bytes is None:
            raise UsageError(
                f"--gpu-memory {self.share:g}: the memory of the GPU is not known, which nvidia-ml-py reads (the extra "
                "gpu); give an amount, as 20GiB"
            )
        limit = int(self.share * total_bytes)
        if limit < LEAST_BYTES:
            raise UsageError(f"--gpu-memory {self.share:g} is less than 1 MiB of a GPU with {total_bytes} bytes")
        return (limit,)


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
    interface: str = setting(
        "network", "", "network interface at which others reach TensorFlow's server; any: it is open on all of them",
        metavar="NAME", default_is="the one that owns this process's address",
    )  # fmt: skip
    metrics_port: int | None = setting(
        "network", None, "port of this process's metrics for Prometheus; 0: any free one", default_is="none", **PORT
    )
    connect_timeout_s: float = setting(
        "network", 60.0, "time to reach the coordinator at the start; give more than ps 0 takes to start", least=0.0
    )
    log_format: str = setting(
        "job", TEXT_LOG, "form of the log on stderr: text, or one JSON object a line", choices=LOG_FORMATS
    )
    restart_code: int = setting(
        "faults", EXIT_RESTART, f"exit code in place of {EXIT_RESTART}, with which a process asks to be started again; "
        "128 or more for a TFJob", least=3, most=255,
    )  # fmt: skip

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
    set: Params = setting(  # noqa: RUF009
        "data and model", (), "a parameter of input_fn, as context.params, and of a model_fn with the argument params: "
        "a number, true, false or text; may be repeated", metavar="NAME=VALUE", default_is="none", reads=param_of,
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
        "job", 1.0, "multiple of its duration that each step takes, by waiting", metavar="TIMES", least=1.0
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

    tls_ca, tls_cert, tls_key: PEM files for mutual TLS, all three or none.  token_file: file with the job's tokens.
    token: the token itself, which only the environment gives; `token_file` goes over it.
    insecure: not empty: what is not protected is allowed all the same.
    """

    tls_ca: str = _file("tls_ca", "certificates of the trusted CAs (PEM)")
    tls_cert: str = _file("tls_cert", "certificate of this process (PEM)")
    tls_key: str = _file("tls_key", "its key (PEM)")
    token_file: str = _file(
        "token_file", "file with the job's token; of several lines the first is sent, and each is accepted",
        ", or the token in PSRUNTIME_TOKEN",
    )  # fmt: skip
    read_token_file: str = _file(
        "read_token_file", "file of ps 0 with another token, or lines of them, with which status and dashboard "
        "read the job and no command changes it",
    )  # fmt: skip
    token: str = field(default="", repr=False)
    insecure: str = ""

    @property
    def is_insecure(self) -> bool:
        return self.insecure not in ("", "0")

    def __post_init__(self) -> None:
        given = {flag_of(name): bool(getattr(self, name)) for name in ("tls_ca", "tls_cert", "tls_key")}
        missing = [flag for flag, there in given.items() if not there]
        if 0 < len(missing) < len(given):
            raise UsageError(f"{', '.join(given)} belong together; missing: {', '.join(missing)}")

    @classmethod
    def of(cls, given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> SecurityConfig:
        """The settings in `given`; of those that are empty there, PSRUNTIME_TLS_CA and so on of the environment.

        PSRUNTIME_INSECURE=1 stands for --insecure.
        """
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


@dataclass(frozen=True)
class EvaluatorConfig:
    """metric: empty, or as --keep-best.  patience: in checkpoints; None: the job is not ended.

    Raises:
        UsageError: a value is out of range.
    """

    metric: str = setting(
        "checkpoints", "", "held-out metric by which an evaluator keeps the best checkpoint, in best/, and has "
        "--patience; written as for --keep-best", metavar="METRIC", default_is="that of --keep-best, or loss",
    )  # fmt: skip
    patience: int | None = setting(
        "checkpoints", None, "end the job, as psruntime control drain does, when the metric got no better in so many "
        "measured checkpoints in a row", default_is="it is not ended", least=1,
    )  # fmt: skip

    def __post_init__(self) -> None:
        Metric.of("metric", self.metric)
        check_values(self)

    @property
    def compares(self) -> bool:
        """Whether it compares checkpoints by a metric."""
        return bool(self.metric) or self.patience is not None

    def metric_of(self, keep_best: str) -> Metric:
        """keep_best: the job's setting."""
        return Metric.of("metric", self.metric or keep_best or "loss")
