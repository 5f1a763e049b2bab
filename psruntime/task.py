"""One task of a cluster: learns its role and index from TF_CONFIG, Slurm or lists of hosts.

psruntime task [settings of the job and its workers]

So every machine runs the same command: `psruntime ps`, `psruntime worker` or `psruntime evaluator`, with what the
cluster says of this task.  With --colocate-ps every task is a worker, and has a ps of its own as its child.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from psruntime.config import JobConfig
from psruntime.config.process import EvaluatorConfig, ProcessConfig, SecurityConfig, WorkerConfig
from psruntime.config.settings import as_flags
from psruntime.core.plan.plan import LIGHT_BYTES
from psruntime.errors import EXIT_DONE, EXIT_FAILED, UsageError
from psruntime.launch.cluster_task import EVALUATOR, PS, WORKER, ClusterTask
from psruntime.launch.colocated_ps import PS_END_S, SIGNALS, ColocatedPs, code_of_both
from psruntime.launch.sources import ClusterConfig, find_task
from psruntime.network.hosts import is_own_host, require_loopback
from psruntime.observe.outputs import entry
from psruntime.process import flags
from psruntime.process.job_file import read_job_file
from psruntime.process.process import end_because_of, end_unjoined, job_has_failed, usage_error

PROG = "psruntime task"
CONNECT_TIMEOUT_S = 7200.0  # tasks are started in any order, and the others wait for ps 0, as stock's sessions do
OF_PROCESS = (
    "health_port",
    "interface",
    "metrics_port",
    "connect_timeout_s",
    "log_format",
    "restart_code",
)  # the cluster says the others


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until the job is over or a signal comes; returns the exit code."""
    words, parser = list(sys.argv[1:] if argv is None else argv), _parser()
    try:
        arguments = parser.parse_args(words)
        file = read_job_file(arguments.job)
        settings = {**file, **flags.given(arguments, JobConfig)}
        cluster = flags.config_of(ClusterConfig, arguments)
        ps = settings.get("ps", JobConfig.ps)
        task = find_task(cluster, os.environ, ps, is_own_host, arguments.colocate_ps)
        command = command_line(task, arguments, settings)
        colocated = _colocated_ps(task, arguments, settings)
    except SystemExit:
        if parser.complaint:
            _report_usage(words, parser.complaint)
        raise
    except UsageError as error:
        _report_usage(words, str(error))
        return usage_error(PROG, error)
    return _with_ps(colocated, task, command) if colocated else _become(task, command)


def _report_usage(words: Sequence[str], reason: str) -> None:
    """Reports to the coordinator that the flags of this task are wrong, if they say that it is a worker, and which."""
    parser = flags.LenientParser()
    parser.add_settings(ClusterConfig)
    flags.add_security_flags(parser, serves_job=True)
    parser.add_settings(JobConfig, only=("ps",))
    parser.add_argument("--colocate-ps", action="store_true")
    with suppress(UsageError):
        arguments, _ = parser.parse_known_args(words)
        cluster, ps = flags.config_of(ClusterConfig, arguments), getattr(arguments, "ps", JobConfig.ps)
        task = find_task(cluster, os.environ, ps, is_own_host, arguments.colocate_ps)
        if task.role == WORKER:
            from psruntime.rpc.client.join import report_usage  # gRPC is not needed otherwise
            from psruntime.rpc.wire.security import load_security

            report_usage(task.coordinator, load_security(flags.security_config(arguments)), task.index, reason)


def _parser() -> flags.Parser:
    parser = flags.Parser(
        PROG,
        "One task of a cluster.  It learns its role and index, and where ps 0 is, from TF_CONFIG, from Slurm, or from "
        "--ps-hosts and --worker-hosts; so every machine runs the same command, with the same flags.",
        first=(
            "model", "data_dir", "batch_size", "ps_hosts", "worker_hosts", "mode", "bound", "train_steps",
            "checkpoint_dir", "save_steps", "log_format", "job", "insecure",
        ),
    )  # fmt: skip
    parser.add_settings(ClusterConfig)
    parser.add_settings(WorkerConfig)
    parser.add_settings(EvaluatorConfig, but=("patience",))  # that of the job, whose chief measures with --keep-best
    parser.add_settings(ProcessConfig, only=OF_PROCESS, defaults={"connect_timeout_s": f"{CONNECT_TIMEOUT_S:g}"})
    parser.add_settings(JobConfig, defaults={"ps": "that of the cluster", "min_workers": "all workers of the cluster"})
    flags.add_job_file_flag(parser)
    flags.add_lifeline_flag(parser)
    parser.heading(flags.MOST_USED).add_argument(
        "--colocate-ps", action="store_true", help="give each worker a ps of its own, as its child: the cluster has "
        "no others, worker 0's address is the coordinator's; mode sync unless another or a schedule is given, and "
        f"--min-ps-bytes {LIGHT_BYTES} unless another is",
    )  # fmt: skip
    flags.add_security_flags(parser, serves_job=True)
    return parser


def command_line(task: ClusterTask, arguments: argparse.Namespace, settings: Mapping[str, Any]) -> list[str]:
    """What follows `psruntime ROLE` for this task.

    settings: of the job, from its file and the flags.

    Raises:
        UsageError: they contradict the cluster or are out of range, or others would reach the coordinator without TLS.
    """
    of_cluster = task.job_settings()
    if task.colocated:  # there are as many ps as workers, whatever the model needs
        of_cluster["min_ps_bytes"] = LIGHT_BYTES
        if not settings.get("schedule"):
            of_cluster["mode"] = "sync"
    if PS in of_cluster and settings.get(PS, of_cluster[PS]) != of_cluster[PS]:
        raise UsageError(f"--ps is {settings['ps']}, and {task.source} has {of_cluster['ps']} ps")
    where = {"connect_timeout_s": CONNECT_TIMEOUT_S, **flags.given(arguments, ProcessConfig)}
    where |= {"coordinator": task.coordinator, **flags.given(arguments, SecurityConfig)}
    if task.role != EVALUATOR:
        where |= {"index": task.index, "host": task.host, "port": task.port}
    else:
        where.pop("interface", None)  # it has no server of TensorFlow
    words = [*as_flags(where), *([f"--lifeline={arguments.lifeline}"] if arguments.lifeline else [])]
    job = flags.given(arguments, JobConfig)
    if not settings.get("keep_best"):  # the patience of an evaluator
        job.pop("patience", None)
        settings = {name: value for name, value in settings.items() if name != "patience"}
    JobConfig(**{**of_cluster, **settings})  # every task says what is wrong with them, not ps 0 alone
    security = flags.security_config(arguments)
    if security.is_insecure:
        words.append("--insecure")
    elif not security.tls_ca:
        require_loopback(task.coordinator)
    if task.role in (WORKER, EVALUATOR):
        own = flags.worker_settings(arguments)
        if task.role == EVALUATOR:
            own = {name: value for name, value in own.items() if name in flags.OF_EVALUATION}
            own |= flags.given(arguments, EvaluatorConfig)
        known = {} if task.local_rank is None else {"local_rank": task.local_rank}
        return [*words, *as_flags({**known, **own, **job})]
    if task.index == 0:
        job = {**{name: value for name, value in of_cluster.items() if name not in settings}, **job}
        words += as_flags({"job": arguments.job}) if arguments.job else ()
    return [*words, *as_flags(job)]


def _become(task: ClusterTask, words: list[str]) -> int:
    room = "psruntime.commands" if task.role == EVALUATOR else "psruntime"
    code: int = importlib.import_module(f"{room}.{task.role}").main(words)
    return code


def _colocated_ps(task: ClusterTask, arguments: argparse.Namespace, settings: Mapping[str, Any]) -> ColocatedPs | None:
    """The ps beside this worker, if the cluster has such."""
    if not task.colocated or task.role != WORKER:
        return None
    its_own = argparse.Namespace(**{**vars(arguments), "lifeline": ""})
    for of_the_worker in ("health_port", "restart_code"):
        its_own.__dict__.pop(of_the_worker, None)
    if port := flags.given(arguments, ProcessConfig).get("metrics_port"):
        its_own.metrics_port = port + 1
    return ColocatedPs(
        command_line(replace(task, role=PS), its_own, settings),
        lambda line: sys.stderr.write(f"{PROG}: {line}\n"),
        end_worker=end_because_of,
        end_unjoined=end_unjoined,
    )


def _with_ps(ps: ColocatedPs, task: ClusterTask, words: list[str]) -> int:
    """This process becomes the worker, with its ps as a child; returns the exit code of both."""
    ps.pass_signals_on()
    if code := ps.start_up(serves_coordinator=task.index == 0):
        return code
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the worker takes them
    code = 128 + ps.signal if ps.signal else _become(task, words)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    ps.end(over=code in (EXIT_DONE, EXIT_FAILED) or job_has_failed(), within_s=PS_END_S)
    return code_of_both(code, ps)


if __name__ == "__main__":
    sys.exit(entry(main))
