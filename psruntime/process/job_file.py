"""The file with a job's settings, and the paths that stand in it and in flags."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from psruntime.config import JobConfig
from psruntime.config.settings import flag_of, settings_of, suggestion
from psruntime.config.values import local_path, whole_path
from psruntime.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TYPES: dict[str, Any] = {"str": str, "int": int, "float": float, "int | None": int, "float | None": float}
NAMED = {int: "a whole number", float: "a number", str: "a text"}  # types in messages
TENSORFLOWS = ("checkpoint_dir", "warm_start", "data_dir")  # settings with paths that TensorFlow may read elsewhere
PYTHONS = ("rounds_log", "record", "log_dir", "tls_ca", "tls_cert", "tls_key", "token_file")  # and other paths


def read_job_file(path: str) -> dict[str, Any]:
    """Settings of a TOML file with the names of JobConfig; without a path there are none.

    Raises:
        UsageError: the file cannot be read, is no TOML, or has a setting of another name or type.
    """
    if not path:
        return {}
    try:
        settings = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise UsageError(f"job file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"job file {path} is not TOML: {error}") from error
    known = {setting.name: str(setting.type) for setting in settings_of(JobConfig)}
    readers = {setting.name: setting.metadata["reads"] for setting in settings_of(JobConfig)}
    for name, value in list(settings.items()):
        if name not in known:
            hint = suggestion(name, known) or f"; known are {', '.join(known)}"
            raise UsageError(f"job file {path}: unknown setting '{name}'{hint}")
        wanted = TYPES[known[name]]
        if readers[name] and isinstance(value, str):
            try:
                settings[name] = readers[name](value)
            except UsageError as error:
                raise UsageError(f"job file {path}: {error}") from error
            continue
        if wanted is int and isinstance(value, float) and value.is_integer():  # as 1e4
            settings[name] = value = int(value)
        if isinstance(value, bool) or not isinstance(value, (int, float) if wanted is float else wanted):
            got = json.dumps(value, default=str)
            raise UsageError(f"job file {path}: {name} must be {NAMED[wanted]}, got {got}")
    return settings


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
