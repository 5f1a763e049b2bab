"""A job on this machine, made of settings: all are checked before a process is started."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psruntime.config import JobConfig
from psruntime.config.process import WorkerConfig
from psruntime.errors import UsageError
from psruntime.launch.children import END_S, LauncherConfig, LocalJob
from psruntime.launch.watch import Patience
from psruntime.observe.records import PARQUET, require_parquet
from psruntime.process import job_file

TRAIN_STEPS = 2000  # a model has no end of its own, but by --epochs
LINGER_S = 0.0  # every process of the job was started here: there are no latecomers to wait for
PROBE_BYTES = 4096  # a block of most file systems: with less room no process could say where it is


def local_job(
    launcher: LauncherConfig, job: Mapping[str, Any], worker: Mapping[str, Any], security: Mapping[str, str],
    insecure: bool,
) -> tuple[LocalJob, Patience]:  # fmt: skip
    """The job, and how long its processes may take to leave it.  job, worker, security: the settings that are given.

    Raises:
        UsageError: one is out of range.
    """
    end = {} if "epochs" in job else {"train_steps": TRAIN_STEPS}
    settings = {**end, "linger_s": LINGER_S, "min_workers": launcher.workers, **job}
    checked = JobConfig(**settings)
    of_worker = WorkerConfig(**worker)
    job_file.require_there(of_worker.data_dir)
    if of_worker.record.endswith(PARQUET):
        require_parquet(of_worker.record)
    local = LocalJob(launcher, checked.ps, settings, worker, security, insecure)
    return local, Patience(checked.drain_timeout_s + END_S, checked.stop_grace_s + END_S)


def log_folder(path: str) -> Path:
    """The folder of the log files; without a path a new temporary one.

    Raises:
        UsageError: it cannot be written to.
    """
    try:
        folder = Path(path or tempfile.mkdtemp(prefix="psruntime-"))
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--log-dir {path} cannot be made: {error.strerror}") from error
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(PROBE_BYTES))
    except OSError as error:
        raise UsageError(f"--log-dir {folder} cannot be written to: {error.strerror}; give another folder") from error
    return folder
