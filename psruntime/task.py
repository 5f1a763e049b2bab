"""One task of a cluster: learns its role and index from TF_CONFIG, Slurm or lists of hosts.

psruntime task [settings of the job and its workers]

So every machine runs the same command: `psruntime ps`, `psruntime worker` or `psruntime evaluator`, with what the
cluster says of this task.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from psruntime import flags
from psruntime.cluster.cluster_task import EVALUATOR, PS, WORKER, ClusterTask
from psruntime.cluster.sources import ClusterConfig, find_task
from psruntime.config import JobConfig, ProcessConfig, SecurityConfig, WorkerConfig
from psruntime.errors import UsageError
from psruntime.network.hosts import is_own_host, require_loopback
from psruntime.process import usage_error
from psruntime.settings import as_flags

PROG = "psruntime task"
CONNECT_TIMEOUT_S = 7200.0  # tasks are started in any order, and the others wait for ps 0, as stock's sessions do
OF_PROCESS = ("health_port", "connect_timeout_s", "log_format")  # the cluster says the others


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until the job is over or a signal comes; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        file = flags.read_job_file(arguments.job)
        settings = {**file, **flags.given(arguments, JobConfig)}
        cluster = flags.config_of(ClusterConfig, arguments)
        task = find_task(cluster, os.environ, settings.get("ps", JobConfig.ps), is_own_host)
        words = command_line(task, arguments, settings)
    except UsageError as error:
        return usage_error(PROG, error)
    code: int = importlib.import_module(f"psruntime.{task.role}").main(words)
    return code


def _parser() -> flags.Parser:
    parser = flags.Parser(
        PROG,
        "One task of a cluster.  It learns its role and index, and where ps 0 is, from TF_CONFIG, from Slurm, or from "
        "--ps-hosts and --worker-hosts; so every machine runs the same command, with the same flags.",
        first=("model", "data_dir", "batch_size", "train_steps", "checkpoint_dir"),
    )
    parser.add_settings(ClusterConfig)
    parser.add_settings(WorkerConfig)
    parser.add_settings(ProcessConfig, only=OF_PROCESS, defaults={"connect_timeout_s": f"{CONNECT_TIMEOUT_S:g}"})
    parser.add_settings(JobConfig, defaults={"ps": "that of the cluster", "min_workers": "all workers of the cluster"})
    flags.add_job_file_flag(parser)
    flags.add_lifeline_flag(parser)
    parser.add_settings(SecurityConfig)
    flags.add_insecure_flag(parser)
    return parser


def command_line(task: ClusterTask, arguments: argparse.Namespace, settings: Mapping[str, Any]) -> list[str]:
    """What follows `psruntime ROLE` for this task.

    settings: of the job, from its file and the flags.

    Raises:
        UsageError: they contradict the cluster or are out of range, or others would reach the coordinator without TLS.
    """
    of_cluster = _of_cluster(task)
    if PS in of_cluster and settings.get(PS, of_cluster[PS]) != of_cluster[PS]:
        raise UsageError(f"--ps is {settings['ps']}, and {task.source} has {of_cluster['ps']} ps")
    where = {"connect_timeout_s": CONNECT_TIMEOUT_S, **flags.given(arguments, ProcessConfig)}
    where |= {"coordinator": task.coordinator, **flags.given(arguments, SecurityConfig)}
    if task.role != EVALUATOR:
        where |= {"index": task.index, "host": task.host, "port": task.port}
    words = [*as_flags(where), *(["--lifeline"] if arguments.lifeline else [])]
    job = flags.given(arguments, JobConfig)
    JobConfig(**{**of_cluster, **settings})  # every task says what is wrong with them, not ps 0 alone
    if not arguments.insecure and not flags.security_config(arguments).tls_ca:
        require_loopback(task.coordinator)
    if task.role in (WORKER, EVALUATOR):
        return [*words, *as_flags({**flags.given(arguments, WorkerConfig), **job})]
    if task.index == 0:
        job = {**{name: value for name, value in of_cluster.items() if name not in settings}, **job}
        words += as_flags({"job": arguments.job}) if arguments.job else ()
    return [*words, *(["--insecure"] if arguments.insecure else []), *as_flags(job)]


def _of_cluster(task: ClusterTask) -> dict[str, int]:
    """The settings of the job that the cluster knows."""
    known = {PS: len(task.ps)} if task.all_ps else {}
    if task.all_workers:
        known["min_workers"] = max(1, len(task.workers))
        if len(task.workers) > JobConfig.max_workers:
            known["max_workers"] = len(task.workers)
    return known


if __name__ == "__main__":
    sys.exit(main())
