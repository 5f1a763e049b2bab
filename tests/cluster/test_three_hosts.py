"""A job on three machines that know each other by name, with disks and working directories of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import hosts as hosts_support
from tests.support.cluster import Proc, Zygote
from tests.support.firewall import write_rules
from tests.support.hosts import Hosts, hosts
from tests.support.polling import poll_until

pytestmark = [
    pytest.mark.cluster, pytest.mark.long,
    pytest.mark.skipif(bool(hosts_support.refusal()), reason=hosts_support.refusal() or "possible"),
]  # fmt: skip

STEPS, END_S = 2000, 120.0
PS, FAST, SLOW = "ps-host", "fast-host", "slow-host"
CLUSTER = {"ps": [f"{PS}:22200"], "worker": [f"{FAST}:22201", f"{SLOW}:22202"]}
TASKS = {PS: ("ps", 0), FAST: ("worker", 0), SLOW: ("worker", 1)}


class Job:
    """Digits in mode sync, started on every host by the same command."""

    def __init__(self, zygote: Zygote, network: Hosts, folder: Path) -> None:
        self.procs: dict[str, Proc] = {}
        argv = [
            "task", "--model=psruntime.examples.digits", "--mode=sync", "--insecure", f"--train-steps={STEPS}",
            f"--checkpoint-dir={network.disk / 'run'}", "--save-steps=100", "--lease=2", "--linger=1",
            "--health-port=22290",
        ]  # fmt: skip
        for host, (role, index) in TASKS.items():
            config = json.dumps({"cluster": CLUSTER, "task": {"type": role, "index": index}})
            world = network.world(host, TF_CONFIG=config)
            self.procs[host] = zygote.start(host, argv, folder / f"{host}.log", [str(folder)], world)

    @property
    def text(self) -> str:
        return "\n".join(f"--- {host}\n{proc.text}" for host, proc in self.procs.items())


@pytest.fixture(params=[4, pytest.param(6, marks=pytest.mark.long)], ids=["IPv4", "IPv6"])
def network(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hosts]:
    with hosts([PS, FAST, SLOW], request.param, tmp_path) as machines:
        yield machines


def test_a_job_on_three_hosts_goes_on_after_a_link_was_cut(zygote: Zygote, network: Hosts, tmp_path: Path) -> None:
    """With a firewall that lets the job through alone, and a slow link."""
    network.limit(SLOW, megabits=10)
    for host in TASKS:
        network.load_firewall(host, firewall(network, tmp_path))
    job = Job(zygote, network, tmp_path)
    try:
        poll_until(lambda: "model.ckpt-100 " in job.text, END_S, "the first checkpoint")
        network.unplug(SLOW)
        job.procs[PS].wait_for('member_lost member="worker 1"', END_S)
        network.plug_in(SLOW)
        codes = {host: proc.wait(END_S) for host, proc in job.procs.items()}
    finally:
        for proc in job.procs.values():
            if proc.code is None:
                proc.kill()
    assert codes == dict.fromkeys(TASKS, 0), job.text
    (accuracy,) = re.findall(rf"^held out, at global step {STEPS}: .*accuracy (\S+)$", job.text, re.MULTILINE)
    assert float(accuracy) >= 0.95
    assert f"address={FAST}:22201" in job.procs[PS].text and f"address={SLOW}:22202" in job.procs[PS].text
    assert job.procs[PS].text.count('member_joined member="worker 1"') >= 2, "it came back"
    assert " balanced=True" in job.procs[PS].text
    chiefs = [host for host in (FAST, SLOW) if (network.disk_of(host) / "run" / "checkpoint").exists()]
    assert chiefs and not any((tmp_path / f"home-of-{host}").glob("*")), "nothing is written elsewhere"


def firewall(network: Hosts, folder: Path) -> Path:
    """launch/psruntime.nft for these machines."""
    ours = ", ".join(network.addresses.values())
    members = {"members6" if ":" in ours else "members": ours}
    return write_rules(folder / "psruntime.nft", owner="root", callers="root", **members)
