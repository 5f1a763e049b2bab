"""Slurm on this machine alone, for tests: munge, controller and daemon, all in a folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

from tests.support.free_ports import free_ports
from tests.support.polling import poll_until

NEEDED = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "scancel", "squeue")


def refusal() -> str:
    """Why there can be no Slurm here; empty if there can."""
    missing = [name for name in NEEDED if not shutil.which(name)]
    if missing:
        return f"needs Slurm with munge: apt-get install munge slurm-wlm; missing: {', '.join(missing)}"
    return "" if os.geteuid() == 0 else "needs root"


class Slurm:
    """A node with 16 slots.  at_exit: ends it, with all of its jobs."""

    def __init__(self, folder: Path, at_exit: ExitStack) -> None:
        folder.mkdir()
        key, munge, name = folder / "munge.key", folder / "munge.socket", socket.gethostname()
        control, daemon = free_ports(2)
        subprocess.run(["mungekey", "--create", f"--keyfile={key}"], check=True)
        conf = folder / "slurm.conf"
        conf.write_text(
            "\n".join(
                [
                    "ClusterName=one", f"SlurmctldHost={name}(127.0.0.1)", f"SlurmctldPort={control}",
                    f"SlurmdPort={daemon}", "AuthType=auth/munge", f"AuthInfo=socket={munge}", "MpiDefault=none",
                    "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "SelectType=select/cons_tres",
                    "SelectTypeParameters=CR_CPU", "SlurmUser=root", "SlurmdUser=root",
                    f"StateSaveLocation={folder}", f"SlurmdSpoolDir={folder / 'spool'}",
                    f"SlurmctldPidFile={folder / 'control.pid'}", f"SlurmdPidFile={folder / 'daemon.pid'}",
                    "SlurmdParameters=config_overrides",
                    f"NodeName={name} NodeAddr=127.0.0.1 CPUs=16",
                    f"PartitionName=all Nodes={name} Default=YES State=UP", "",
                ]
            )
        )  # fmt: skip
        self.environment = {"SLURM_CONF": str(conf)}
        files = [f"--{kind}-file={folder / f'munge.{kind}'}" for kind in ("pid", "log", "seed")]
        for command in (
            ["munged", "--foreground", "--force", f"--socket={munge}", f"--key-file={key}", *files],
            ["slurmctld", "-D", "-f", str(conf)],
            ["slurmd", "-D", "-N", name, "-f", str(conf)],
        ):
            with (folder / f"{command[0]}.log").open("w") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **self.environment})
            at_exit.callback(process.wait, 30)
            at_exit.callback(process.terminate)
        at_exit.callback(self._end_all)
        poll_until(lambda: "idle" in self.ask("sinfo", "-h", "-o", "%t"), 30, "a node that is idle")

    def _end_all(self) -> None:
        """No job outlives the test, whatever became of that."""
        self.ask("scancel", "--user=root", "--signal=KILL", "--full")
        poll_until(lambda: not self.ask("squeue", "-h"), 60, "the end of all jobs")

    def ask(self, *command: str) -> str:
        return subprocess.run(
            command, env={**os.environ, **self.environment}, text=True, capture_output=True, timeout=30, check=False
        ).stdout
