"""Command lines: one flag for each setting, the same names as in config.py and in a job file."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from psruntime.config import (
    DEFAULT_COORDINATOR,
    DEFAULT_MODEL,
    LOG_FORMATS,
    JobConfig,
    ProcessConfig,
    SecurityConfig,
    WorkerConfig,
    flag_of,
    job_fields,
)
from psruntime.errors import EXIT_USAGE, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TYPES: dict[str, Any] = {"str": str, "int": int, "float": float, "int | None": int}
_SECURITY = {
    "tls_ca": "certificates of the CAs that this process trusts (PEM)",
    "tls_cert": "certificate of this process (PEM)",
    "tls_key": "its key (PEM)",
    "token_file": "file with the job's token, its only line",
}
_JOB_NAMES = [f.name for f in job_fields()]


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}; --help lists the flags\n")


def make_parser(prog: str, description: str) -> Parser:
    return Parser(prog=prog, description=description, allow_abbrev=False)


def add_process_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of ProcessConfig."""
    group = parser.add_argument_group("this process")
    group.add_argument("--index", type=int, required=True, help="index of this process in its role, from 0")
    add_coordinator_flag(group)
    group.add_argument("--host", default="", help="address at which the others reach this process (default: the local "
                       "address of the route to the coordinator)")  # fmt: skip
    group.add_argument("--port", type=int, default=0, help="port of TensorFlow's server (default: any free one)")
    group.add_argument("--health-port", type=int, default=0, help="port of grpc.health.v1 (default: any free one)")
    group.add_argument("--connect-timeout", dest="connect_timeout_s", type=float, default=60.0, metavar="S",
                       help="how long to try to reach the coordinator (default: 60)")  # fmt: skip
    add_log_flag(group)
    group.add_argument(
        "--lifeline", action="store_true", help="end when stdin does, so that no process outlives its launcher"
    )
    add_security_flags(parser)


def add_coordinator_flag(parser: Any) -> None:
    parser.add_argument("--coordinator", default=DEFAULT_COORDINATOR, metavar="HOST:PORT",
                        help=f"the coordinator, which ps 0 hosts (default: {DEFAULT_COORDINATOR})")  # fmt: skip


def add_log_flag(parser: Any) -> None:
    parser.add_argument("--log-format", default=LOG_FORMATS[0], choices=LOG_FORMATS, help="form of the log on stderr; "
                        f"json has one object a line (default: {LOG_FORMATS[0]})")  # fmt: skip


def add_security_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of SecurityConfig."""
    group = parser.add_argument_group("security", "For every process of a job; see README.md, Security.")
    for name, text in _SECURITY.items():
        default = f"the environment's PSRUNTIME_{name.upper()}"
        if name == "token_file":
            default += ", or the token in PSRUNTIME_TOKEN"
        group.add_argument(flag_of(name), default="", metavar="FILE", help=f"{text} (default: {default})")


def add_insecure_flag(parser: argparse.ArgumentParser) -> None:
    """For whoever starts ps 0."""
    parser.add_argument("--insecure", action="store_true", help="let the coordinator, which ps 0 hosts, serve other "
                        "machines without TLS: whoever reaches it can change the job")  # fmt: skip


def add_worker_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of WorkerConfig."""
    group = parser.add_argument_group("this worker")
    group.add_argument("--model", default=DEFAULT_MODEL, metavar="MODULE",
                       help=f"module with input_fn and model_fn (default: {DEFAULT_MODEL})")  # fmt: skip
    group.add_argument("--data-dir", default="", help="folder that input_fn is told (context.data_dir)")
    group.add_argument("--batch-size", type=int, default=WorkerConfig.batch_size,
                       help=f"examples in a batch (default: {WorkerConfig.batch_size})")  # fmt: skip
    group.add_argument("--seed", type=int, default=0, help="context.seed is this plus the worker's index (default: 0)")


def add_job_flags(parser: argparse.ArgumentParser, where: str) -> None:
    """Flags of JobConfig; one that is not given is absent from the namespace.  `where` heads them in the help."""
    group = parser.add_argument_group(where)
    for setting in job_fields():
        default = "none" if setting.default in (None, "") else setting.default
        group.add_argument(
            flag_of(setting.name),
            dest=setting.name,
            type=_TYPES[setting.type],
            nargs="?" if setting.default == "off" else None,
            const="on" if setting.default == "off" else None,
            default=argparse.SUPPRESS,
            metavar="S" if setting.name.endswith("_s") else None,
            help=f"{setting.metadata['help']} (default: {default})",
        )


def job_flags_given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The job settings that stand on the command line."""
    return {name: value for name, value in vars(arguments).items() if name in _JOB_NAMES}


def security_config(arguments: argparse.Namespace) -> SecurityConfig:
    return SecurityConfig.of(security_given(arguments))


def security_given(arguments: argparse.Namespace) -> dict[str, str]:
    """The settings of SecurityConfig that stand on the command line."""
    return {name: value for name in _SECURITY if (value := getattr(arguments, name))}


def process_config(arguments: argparse.Namespace) -> ProcessConfig:
    return ProcessConfig(**{f.name: getattr(arguments, f.name) for f in fields(ProcessConfig)})


def worker_config(arguments: argparse.Namespace) -> WorkerConfig:
    return WorkerConfig(**{f.name: getattr(arguments, f.name) for f in fields(WorkerConfig)})


def read_job_file(path: str) -> dict[str, Any]:
    """Settings of a TOML file with the names of JobConfig.

    Raises:
        UsageError: the file cannot be read, is no TOML, or has a setting of another name or type.
    """
    try:
        settings = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise UsageError(f"job file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"job file {path} is not TOML: {error}") from error
    known = {f.name: f.type for f in job_fields()}
    for name, value in settings.items():
        if name not in known:
            raise UsageError(f"job file {path}: unknown setting '{name}'; known are {', '.join(known)}")
        wanted = _TYPES[known[name]]
        if isinstance(value, bool) or not isinstance(value, (int, float) if wanted is float else wanted):
            raise UsageError(f"job file {path}: {name} must be of type {wanted.__name__}, got {value!r}")
    return settings


def job_config(arguments: argparse.Namespace) -> JobConfig:
    """The job as ps 0 is given it: defaults, over them the job file, over that the flags."""
    from_file = read_job_file(arguments.job) if arguments.job else {}
    return JobConfig(**{**from_file, **job_flags_given(arguments)})
