"""The ps beside a script, where TF_CONFIG has a cluster of workers alone: a child of the script's process."""

from __future__ import annotations

import argparse
import atexit
import sys
from collections.abc import Mapping, Sequence

from psruntime.classic.member import ScriptMember, end_script_because_of
from psruntime.config.process import ProcessConfig
from psruntime.config.settings import as_flags
from psruntime.launch.cluster_task import ClusterTask
from psruntime.launch.colocated_ps import PS_END_S, ColocatedPs
from psruntime.process.job_file import local_file, read_job_file


class PsBeside:
    """Starts with its script, and ends after it: by itself when the job is done or failed, else when it is asked to.

    Raises:
        UsageError: the job file cannot be read.
        SystemExit: ps 0 has not started; the reason is on stderr.
    """

    def __init__(
        self, name: str, task: ClusterTask, where: ProcessConfig, files: Mapping[str, str], arguments: Sequence[str]
    ) -> None:
        """files: of the security settings.  arguments: of ps 0, the settings of the job."""
        words = command_line(task, where, files, arguments)
        self._member: ScriptMember | None = None
        self._ps = ColocatedPs(
            words, lambda line: sys.stderr.write(f"{name}: {line}\n"), out=sys.stderr, end_worker=end_script_because_of
        )
        if code := self._ps.start_up(serves_coordinator=task.index == 0):
            raise SystemExit(code)
        atexit.register(self._end)

    def serves(self, member: ScriptMember) -> None:
        """The member knows whether the job is over.  Made later than this, it leaves before this ends."""
        self._member = member

    def _end(self) -> None:
        self._ps.end(over=self._member is not None and self._member.job_has_ended, within_s=PS_END_S)


def command_line(
    task: ClusterTask, where: ProcessConfig, files: Mapping[str, str], arguments: Sequence[str]
) -> list[str]:
    """What follows `psruntime ps` for the ps beside this task."""
    words = as_flags({
        "index": task.index, "coordinator": where.coordinator, "host": where.host, "log_format": where.log_format,
        "connect_timeout_s": where.connect_timeout_s, **({"interface": where.interface} if where.interface else {}),
        **{name: path for name, path in files.items() if path},
    })  # fmt: skip
    if task.index > 0:
        return list(words)
    in_file = read_job_file(job_file_of(arguments))
    known = {name: value for name, value in task.job_settings().items() if name not in in_file}
    return [*words, *as_flags(known), *arguments]


def job_file_of(arguments: Sequence[str]) -> str:
    """The file that `--job` names among these; empty without one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--job", default="", type=local_file)
    path: str = parser.parse_known_args(list(arguments))[0].job
    return path
