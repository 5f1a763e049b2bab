"""The file with a job's settings, and the paths that stand in it and in flags."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import Field
from pathlib import Path
from typing import Any

from psruntime.config import JobConfig
from psruntime.config.job import require_one_mode
from psruntime.config.settings import OF_THE_MODEL, Params, flag_of, params_of, settings_of, suggestion
from psruntime.config.values import local_path, whole_path
from psruntime.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TYPES: dict[str, Any] = {
    "str": str, "int": int, "float": float, "int | None": int, "float | None": float, "Params": tuple
}  # fmt: skip
NAMED = {int: "a whole number", float: "a number", str: "a text"}  # types in messages
PARAMS = "set"  # the table of a job file with the parameters
TENSORFLOWS = ("checkpoint_dir", "warm_start", "data_dir")  # settings with paths that TensorFlow may read elsewhere
PYTHONS = (  # and other paths
    "rounds_log", "record", "log_dir", "tls_ca", "tls_cert", "tls_key", "token_file", "read_token_file",
)  # fmt: skip


def read_job_file(path: str) -> dict[str, Any]:
    """Settings of a TOML file with the names of JobConfig, without its parameters; without a path there are none.

    Raises:
        UsageError: the file cannot be read, is no TOML, or has a setting of another name or type.
    """
    settings = {name: value for name, value in _toml(path).items() if name != PARAMS}
    return typed(f"job file {path}", settings, settings_of(JobConfig))


def read_params(path: str) -> Params:
    """The table `[set]` of a job file; otherwise as `read_job_file`."""
    found = _toml(path).get(PARAMS, {})
    try:
        return params_of(found)
    except UsageError as error:
        raise UsageError(f"job file {path}: {error}") from error


def _toml(path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"job file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"job file {path} is not TOML: {error}") from error


def job_settings(path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the job: those of the job file, over them those given.

    Raises:
        UsageError: as read_job_file.
    """
    settings = {**resolved(read_job_file(path)), **given}
    require_one_mode(settings)
    if settings.get("checkpoint_dir"):
        require_path("--checkpoint-dir", settings["checkpoint_dir"])
    return settings


def worker_settings(path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a worker: the parameters of the job file, over them the settings given.

    Raises:
        UsageError: as read_job_file.
    """
    params = {**dict(read_params(path)), **dict(given.get(PARAMS, ()))}
    return {**given, PARAMS: tuple(params.items())} if params else {**given}


def require_there(data_dir: str) -> None:
    """Raises UsageError if this is a path of this machine, not an address as `gs://...`, and nothing is there."""
    if data_dir and "://" not in data_dir and not Path(data_dir).exists():
        raise UsageError(f"--data-dir {data_dir} is not there: no such file or folder on this machine")


def typed(source: str, settings: Mapping[str, Any], fields: Iterable[Field[Any]]) -> dict[str, Any]:
    """The settings, each of which is one of the fields, and has its type.  source: where they stand, for messages.

    Raises:
        UsageError: one has another name or type.
    """
    known = {field.name: field for field in fields}
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in known:
            hint = OF_THE_MODEL.get(name) or suggestion(name, known) or f"; known are {', '.join(known)}"
            raise UsageError(f"{source}: unknown setting '{name}'{hint}")
        wanted, reads = TYPES[str(known[name].type)], known[name].metadata["reads"]
        try:
            if wanted is tuple:
                found[name] = params_of(value)
            elif reads and isinstance(value, str):
                found[name] = reads(value)
            elif wanted is int and isinstance(value, float) and value.is_integer():  # as 1e4
                found[name] = int(value)
            elif isinstance(value, bool) or not isinstance(value, (int, float) if wanted is float else wanted):
                raise UsageError(f"{name} must be {NAMED[wanted]}, got {json.dumps(value, default=str)}")
            else:
                found[name] = value
        except UsageError as error:
            raise UsageError(f"{source}: {error}") from error
    return found


def resolved(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with paths in place of `file:` URLs, and with the whole paths of checkpoints: other processes may
    run in another folder.

    Raises:
        UsageError: a URL is no path of this machine; or it is of a file system that Python does not open, and the
            setting names a file or folder that is written or read by Python.
    """
    paths = {}
    for name in (*TENSORFLOWS, *PYTHONS):
        if not settings.get(name):
            continue
        try:
            paths[name] = local_path(settings[name])
            if name in ("checkpoint_dir", "warm_start"):
                paths[name] = whole_path(paths[name])
        except UsageError as error:
            raise UsageError(f"{flag_of(name)}: {error}") from error
        if name in PYTHONS:
            require_path(flag_of(name), paths[name])
    return {**settings, **paths}


def local_file(path: str) -> str:
    """The `type` of an argument that names a file, or a folder, of this machine; a `file:` URL counts as its path."""
    try:
        path = local_path(path)
        require_path("", path)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error).strip()) from error
    return path


def require_path(flag: str, path: str) -> None:
    """Raises UsageError for a URL, as `gs://...`, where only a path will do."""
    if "://" in path:
        raise UsageError(f"{flag} {path} is not in a file system of this machine; give a path, of a mount for example")
