"""The same job by each way to start one: it reaches the same accuracy.

In mode sync with two workers of the same batches the updates are the same however they are carried out.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import hosts as hosts_support
from tests.support import slurm as slurm_support
from tests.support import sshd
from tests.support.cluster import ROOT, Proc, Zygote, codes_at_end
from tests.support.commands import LOCAL, Commands
from tests.support.free_ports import free_ports
from tests.support.hosts import hosts
from tests.support.polling import poll_until
from tests.support.slurm import Slurm
from tests.support.worlds import World

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(900)]

STEPS, END_S = 600, 150.0
JOB = [
    "--model=psruntime.examples.digits", "--mode=sync", f"--train-steps={STEPS}", "--min-workers=2", "--linger=1",
]  # fmt: skip
ALIKE = 0.01  # of 360 held-out images


def ended(procs: list[Proc]) -> str:
    """What they said, once all have ended with 0."""
    codes = codes_at_end(procs, END_S)
    text = "\n".join(proc.text for proc in procs)
    assert set(codes) == {0}, text
    return text


def tasks(zygote: Zygote, folder: Path, cluster: dict[str, list[str]], *flags: str) -> str:
    """A job of TF_CONFIG."""
    procs = []
    for role, addresses in cluster.items():
        for index in range(len(addresses)):
            config = json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})
            world = World(environment={"TF_CONFIG": config})
            log = folder / f"{role}-{index}.log"
            procs.append(zygote.start(role, ["task", *JOB, *flags], log, [str(folder)], world))
    return ended(procs)


def by_run(_: Zygote, folder: Path) -> str:
    code, out, err = Commands(folder).run(LOCAL, "--ps=2", "--workers=2", "--log-dir=logs", *JOB)
    assert code == 0, err
    return out


def by_tf_config(zygote: Zygote, folder: Path) -> str:
    ports = free_ports(3)
    named = [f"localhost:{port}" for port in ports]
    return tasks(zygote, folder, {"ps": named[:1], "worker": named[1:]})


def by_tf_config_without_ps(zygote: Zygote, folder: Path) -> str:
    return tasks(zygote, folder, {"worker": [f"localhost:{port}" for port in free_ports(2)]}, "--colocate-ps")


def by_ssh(_: Zygote, folder: Path) -> str:
    with ExitStack() as stack:
        machines = sshd.Machines(folder, stack)
        process = machines.start(*JOB)
        out, err = process.communicate(timeout=END_S)
        assert process.returncode == 0, err + out
        machines.await_end(30)
        return out


def by_slurm(_: Zygote, folder: Path) -> str:
    commands = Commands(folder)
    log = folder / "job.log"
    with ExitStack() as stack:
        slurm = Slurm(folder / "slurm", stack)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        commands.environment |= {**slurm.environment, "PATH": path}
        script = str(ROOT / "launch" / "slurm.sbatch")
        code, out, err = commands.run("sbatch", "--ntasks=3", f"--output={log}", script, "--ps=1", *JOB)
        assert code == 0, err
        poll_until(lambda: not slurm.ask("squeue", "-h", "-j", out.split()[-1]), END_S, "the end of the job")
        return log.read_text()


def on_three_hosts(version: int) -> Callable[[Zygote, Path], str]:
    def job(zygote: Zygote, folder: Path) -> str:
        cluster = {"ps": ["one:22200"], "worker": ["two:22201", "three:22202"]}
        places = {"one": ("ps", 0), "two": ("worker", 0), "three": ("worker", 1)}
        with hosts(list(places), version, folder) as network:
            procs = []
            for host, (role, index) in places.items():
                config = json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})
                world = network.world(host, TF_CONFIG=config)
                argv = ["task", "--insecure", *JOB]
                procs.append(zygote.start(host, argv, folder / f"{host}.log", [str(folder)], world))
            return ended(procs)

    return job


WAYS: dict[str, tuple[Callable[[Zygote, Path], str], Callable[[], str]]] = {
    "psruntime run": (by_run, str),
    "TF_CONFIG": (by_tf_config, str),
    "TF_CONFIG without ps": (by_tf_config_without_ps, str),
    "ssh.sh": (by_ssh, sshd.refusal),
    "slurm.sbatch": (by_slurm, slurm_support.refusal),
    "three hosts, IPv4": (on_three_hosts(4), hosts_support.refusal),
    "three hosts, IPv6": (on_three_hosts(6), hosts_support.refusal),
}


def test_each_way_to_start_a_job_reaches_the_same_accuracy(zygote: Zygote, tmp_path: Path) -> None:
    reached: dict[str, float] = {}
    passed_over: dict[str, str] = {}
    for number, (way, (job, refusal)) in enumerate(WAYS.items()):
        if why := refusal():
            passed_over[way] = why
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        found = re.findall(rf"held out, at global step {STEPS}: .*accuracy (\S+)$", job(zygote, folder), re.MULTILINE)
        assert len(found) == 1, f"{way}: {found}"
        reached[way] = float(found[0])
    print({**reached, **passed_over})
    assert max(reached.values()) - min(reached.values()) <= ALIKE, reached
    assert min(reached.values()) >= 0.95, reached
