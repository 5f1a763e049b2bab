"""Runs a whole job on this machine: ps, workers, a progress line, one log file per process.

psruntime run [--ps P] [--workers W] [--model MODULE] [settings of the job and its workers]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from psruntime.config import JobConfig
from psruntime.config.process import SecurityConfig, WorkerConfig
from psruntime.config.settings import settings_of
from psruntime.errors import UsageError
from psruntime.launch import local_job as launch
from psruntime.launch.children import PROG, LauncherConfig, LocalJob
from psruntime.launch.local_job import LINGER_S, TRAIN_STEPS, log_folder
from psruntime.launch.watch import Patience, run_job
from psruntime.model import find_model, unread_params
from psruntime.observe.outputs import entry
from psruntime.process import flags
from psruntime.process.process import usage_error
from psruntime.rpc.wire import own_memory

OF_WORKERS = tuple(s.name for s in settings_of(WorkerConfig) if s.name != "local_rank")  # that is its index


def main(argv: Sequence[str] | None = None) -> int:
    """Until the job is over or a signal comes; returns the exit code."""
    arguments = parser().parse_args(argv)
    try:
        job, patience = local_job(arguments)
        worker = flags.worker_config(arguments)
        find_model(worker.model)
        folder = log_folder(job.launcher.log_dir)
    except UsageError as error:
        return usage_error(PROG, error)
    if remark := unread_params(worker.model, worker.set):
        sys.stderr.write(f"{PROG}: {remark}\n")
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
    flags.add_security_flags(parser, serves_job=True)
    return parser


def local_job(arguments: argparse.Namespace) -> tuple[LocalJob, Patience]:
    """The job, and how long its processes may take to leave it.  All settings are checked.

    Raises:
        UsageError: one is out of range.
    """
    security = flags.security_config(arguments)
    own_memory.hide(security)
    return launch.local_job(
        flags.config_of(LauncherConfig, arguments), flags.job_settings(arguments), flags.worker_settings(arguments),
        flags.given(arguments, SecurityConfig), security.is_insecure,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(entry(main))
