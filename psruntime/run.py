"""Runs a whole job on this machine: ps, workers, a progress line, one log file per process.

psruntime run [--ps P] [--workers W] [--model MODULE] [settings of the job and its workers]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from psruntime.config import JobConfig
from psruntime.config.process import SecurityConfig, WorkerConfig
from psruntime.config.settings import settings_of
from psruntime.errors import UsageError
from psruntime.launch.children import END_S, PROG, LauncherConfig, LocalJob
from psruntime.launch.watch import Patience, run_job
from psruntime.model import find_model
from psruntime.observe.outputs import entry
from psruntime.observe.records import PARQUET, require_parquet
from psruntime.process import flags
from psruntime.process.process import usage_error

OF_WORKERS = tuple(s.name for s in settings_of(WorkerConfig) if s.name != "local_rank")  # that is its index
TRAIN_STEPS = 2000  # a model has no end of its own, but by --epochs
PROBE_BYTES = 4096  # a block of most file systems: with less room no process could say where it is
LINGER_S = 0.0  # every process of the job was started here: there are no latecomers to wait for


def main(argv: Sequence[str] | None = None) -> int:
    """Until the job is over or a signal comes; returns the exit code."""
    arguments = parser().parse_args(argv)
    try:
        job, patience = local_job(arguments)
        worker = flags.worker_config(arguments)
        find_model(worker.model)
        if worker.record.endswith(PARQUET):
            require_parquet(worker.record)
        folder = _log_folder(job.launcher.log_dir)
    except UsageError as error:
        return usage_error(PROG, error)
    return run_job(job, folder, patience)


def parser() -> flags.Parser:
    """The flags of this command."""
    parser = flags.Parser(
        PROG, "Runs a whole job on this machine and watches over it.",
        first=(
            "model", "data_dir", "batch_size", "ps", "workers", "mode", "bound", "train_steps", "checkpoint_dir",
            "save_steps", "restart", "log_dir",
        ),
    )  # fmt: skip
    parser.add_settings(WorkerConfig, only=OF_WORKERS)
    parser.add_settings(LauncherConfig)
    parser.add_settings(
        JobConfig,
        defaults={
            "train_steps": f"{TRAIN_STEPS}, with --epochs none",
            "linger_s": f"{LINGER_S:g}",
            "min_workers": "that of --workers",
        },
        helps={"train_steps": "global step at which the job ends"},
    )
    flags.add_job_file_flag(parser)
    parser.add_settings(SecurityConfig)
    flags.add_insecure_flag(parser)
    return parser


def local_job(arguments: argparse.Namespace) -> tuple[LocalJob, Patience]:
    """The job, and how long its processes may take to leave it.  All settings are checked.

    Raises:
        UsageError: one is out of range.
    """
    launcher = flags.config_of(LauncherConfig, arguments)
    given = flags.job_settings(arguments)
    end = {} if "epochs" in given else {"train_steps": TRAIN_STEPS}
    settings = {**end, "linger_s": LINGER_S, "min_workers": launcher.workers, **given}
    job = JobConfig(**settings)
    flags.worker_config(arguments)
    flags.security_config(arguments)
    local = LocalJob(
        launcher, job.ps, settings, flags.given(arguments, WorkerConfig), flags.given(arguments, SecurityConfig),
        arguments.insecure,
    )  # fmt: skip
    return local, Patience(job.drain_timeout_s + END_S, job.stop_grace_s + END_S)


def _log_folder(path: str) -> Path:
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


if __name__ == "__main__":
    sys.exit(entry(main))
