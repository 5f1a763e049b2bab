"""launch/psruntime.nft: a member of the cluster reaches a port of the job, nobody else does.

In network namespaces of their own: the machine's network and rules are not touched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.firewall import RULES, write_rules

MEMBER, MEMBER6 = "10.9.1.2", "fd09:1::2"
OUTSIDER, OUTSIDER6 = "10.9.2.2", "fd09:2::2"
TO_MEMBER, TO_MEMBER6 = "10.9.1.1", "fd09:1::1"  # addresses of the guarded machine
TO_OUTSIDER, TO_OUTSIDER6 = "10.9.2.1", "fd09:2::1"
TENSORFLOW, OTHER = 22200, 22300  # a port of the job, and one of another program
RANGE = "22200-22299"

LISTEN = """
import socket, sys
both = {"family": socket.AF_INET6, "dualstack_ipv6": True}
listeners = [socket.create_server(("::", int(port)), **both) for port in sys.argv[1:]]
print("listening", flush=True)
sys.stdin.read()
"""
CONNECT = """
import socket, sys
host, port, source, timeout_s = sys.argv[1:]
try:
    socket.create_connection((host, int(port)), float(timeout_s), ("", int(source))).close()
except TimeoutError:
    print("nothing comes back")
except OSError as error:
    print(error.strerror)
else:
    print("reached")
"""


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


class Network:
    """Three machines: `guarded`, and two that have a cable to it each, `member` and `outsider`."""

    def __init__(self, at_exit: ExitStack) -> None:
        self._at_exit = at_exit
        mark = uuid.uuid4().hex[:8]
        self.guarded, self.member, self.outsider = (f"psruntime-{mark}-{name}" for name in ("guarded", "in", "out"))
        for name in (self.guarded, self.member, self.outsider):
            run("ip", "netns", "add", name)
            at_exit.callback(run, "ip", "netns", "delete", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        self._cable(self.member, "to-in", (TO_MEMBER, TO_MEMBER6), (MEMBER, MEMBER6))
        self._cable(self.outsider, "to-out", (TO_OUTSIDER, TO_OUTSIDER6), (OUTSIDER, OUTSIDER6))

    def _cable(self, other: str, name: str, here: tuple[str, str], there: tuple[str, str]) -> None:
        run("ip", "-n", self.guarded, "link", "add", "name", name, "type", "veth", "peer", "name", name, "netns", other)
        for machine, (address, address6) in ((self.guarded, here), (other, there)):
            run("ip", "-n", machine, "address", "add", f"{address}/24", "dev", name)
            run("ip", "-n", machine, "-6", "address", "add", f"{address6}/64", "dev", name, "nodad")
            run("ip", "-n", machine, "link", "set", name, "up")

    def listen(self, machine: str, *ports: int) -> None:
        """A program that accepts on all interfaces, until the test ends."""
        command = ["ip", "netns", "exec", machine, sys.executable, "-c", LISTEN, *map(str, ports)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._at_exit.callback(process.communicate, timeout=30)
        assert process.stdout and process.stdout.readline() == "listening\n"

    def connect(self, machine: str, host: str, port: int, source_port: int = 0, timeout_s: float = 30.0) -> str:
        """What a program on this machine finds at an address."""
        arguments = map(str, (host, port, source_port, timeout_s))
        return run("ip", "netns", "exec", machine, sys.executable, "-c", CONNECT, *arguments).strip()

    def load(self, rules: Path) -> None:
        run("ip", "netns", "exec", self.guarded, "nft", "-f", str(rules))

    def dropped_packets(self) -> int:
        chain = run("ip", "netns", "exec", self.guarded, "nft", "list", "chain", "inet", "psruntime", "members_only")
        (packets,) = re.findall(r"counter packets (\d+) bytes \d+ drop", chain)
        return int(packets)


def missing() -> str:
    """Why this machine cannot run the test; empty if it can."""
    lacks = [tool for tool in ("ip", "nft") if not shutil.which(tool)]
    if lacks:
        return f"needs {' and '.join(lacks)}: apt-get install iproute2 nftables"
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    name = f"psruntime-{uuid.uuid4().hex[:8]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"cannot make a network namespace: {made.stderr.strip()}"
    tried = subprocess.run(["ip", "netns", "exec", name, "nft", "list", "ruleset"], capture_output=True, text=True)
    run("ip", "netns", "delete", name)
    return f"cannot use nft in a network namespace: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.fixture
def network() -> Iterator[Network]:
    why = missing()
    if why:
        pytest.skip(why)
    with ExitStack() as at_exit:
        yield Network(at_exit)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """The rules with this network's addresses."""
    assert f"define ports = {RANGE} " in RULES.read_text()
    return write_rules(tmp_path / "psruntime.nft", members=MEMBER, members6=MEMBER6)


def test_only_members_reach_the_ports_of_a_job(network: Network, rules: Path) -> None:
    network.listen(network.guarded, TENSORFLOW, OTHER)
    network.listen(network.outsider, OTHER)
    for host in (TO_OUTSIDER, TO_OUTSIDER6):
        assert network.connect(network.outsider, host, TENSORFLOW) == "reached", "without the rules it is open"

    network.load(rules)
    network.load(rules)  # it replaces itself
    for host in (TO_OUTSIDER, TO_OUTSIDER6):
        assert network.connect(network.outsider, host, TENSORFLOW, timeout_s=1.0) == "nothing comes back"
        assert network.connect(network.outsider, host, OTHER) == "reached", "other ports are not its affair"
    dropped = network.dropped_packets()
    assert dropped > 0
    for host in (TO_MEMBER, TO_MEMBER6):
        assert network.connect(network.member, host, TENSORFLOW) == "reached"
    for host in ("127.0.0.1", "::1", TO_MEMBER):
        assert network.connect(network.guarded, host, TENSORFLOW) == "reached", "the machine itself"
    assert network.connect(network.guarded, OUTSIDER, OTHER, source_port=22250) == "reached", "replies come in"
    assert network.dropped_packets() == dropped
