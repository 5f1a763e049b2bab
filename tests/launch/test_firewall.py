"""launch/psruntime.nft: the members of a job and its user reach its ports, no other machine and no other user does.

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
from tests.support.selection import long_but

MEMBER, MEMBER6 = "10.9.1.2", "fd09:1::2"
OUTSIDER, OUTSIDER6 = "10.9.2.2", "fd09:2::2"
TO_MEMBER, TO_MEMBER6 = "10.9.1.1", "fd09:1::1"  # addresses of the guarded machine
TO_OUTSIDER, TO_OUTSIDER6 = "10.9.2.1", "fd09:2::1"
TENSORFLOW, OTHER = 22200, 22300  # a port of the job, and one of another program
RANGE = "22200-22299"
OWNER, STRANGER, NEIGHBOUR = 3001, 3002, 3003  # users: of the job, and others
LOCAL = ("127.0.0.1", "::1", TO_MEMBER, TO_MEMBER6)  # where a machine calls itself

LISTEN = """
import os, socket, sys, threading
uid, *ports = map(int, sys.argv[1:])
os.setresuid(uid, uid, uid)
both = {"family": socket.AF_INET6, "dualstack_ipv6": True}
listeners = [socket.create_server(("::", port), **both) for port in ports]
def accept(listener):
    while True:
        listener.accept()[0].close()
        print("accepted", flush=True)
for listener in listeners:
    threading.Thread(target=accept, args=[listener], daemon=True).start()
print("listening", *(listener.getsockname()[1] for listener in listeners), flush=True)
sys.stdin.read()
"""
CONNECT = """
import encodings.idna, os, socket, sys  # all of Python that is needed, before it is another user
uid, host, port, source, timeout_s = sys.argv[1:]
os.setresuid(*3 * [int(uid)])
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

    def listen(self, machine: str, *ports: int, uid: int = OWNER) -> list[int]:
        """A program that accepts on all interfaces, until the test ends; returns its ports, of which 0 is any."""
        command = ["ip", "netns", "exec", machine, sys.executable, "-c", LISTEN, str(uid), *map(str, ports)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._at_exit.callback(process.communicate, timeout=30)
        assert process.stdout
        word, *found = process.stdout.readline().split()
        assert word == "listening"
        return [int(port) for port in found]

    def connect(
        self, machine: str, host: str, port: int, source_port: int = 0, timeout_s: float = 30.0, uid: int = 0
    ) -> str:
        """What a program on this machine finds at an address."""
        arguments = map(str, (uid, host, port, source_port, timeout_s))
        return run("ip", "netns", "exec", machine, sys.executable, "-c", CONNECT, *arguments).strip()

    def knock(self, machine: str, host: str, port: int, uid: int = 0) -> str:
        """The same, where nothing is expected to come back."""
        return self.connect(machine, host, port, timeout_s=0.7, uid=uid)

    def load(self, rules: Path, machine: str = "") -> None:
        run("ip", "netns", "exec", machine or self.guarded, "nft", "-f", str(rules))

    def dropped_packets(self, chain: str = "members_only") -> int:
        """members_only: of other machines."""
        text = run("ip", "netns", "exec", self.guarded, "nft", "list", "chain", "inet", "psruntime", chain)
        return sum(int(packets) for packets in re.findall(r"counter packets (\d+) bytes \d+ drop", text))


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
    """The rules with this network's addresses and users."""
    assert f"define ports = {RANGE} " in RULES.read_text()
    users = {"owner": str(OWNER), "callers": f"{OWNER}, root"}
    own = {"members": f"{MEMBER}, {TO_MEMBER}", "members6": f"{MEMBER6}, {TO_MEMBER6}"}
    return write_rules(tmp_path / "psruntime.nft", **own, **users)


NOTHING, REACHED = "nothing comes back", "reached"


def test_only_members_reach_the_ports_of_a_job(network: Network, rules: Path) -> None:
    network.listen(network.guarded, TENSORFLOW)
    network.listen(network.guarded, OTHER, uid=NEIGHBOUR)
    network.listen(network.outsider, OTHER)
    for host in (TO_OUTSIDER, TO_OUTSIDER6):
        assert network.connect(network.outsider, host, TENSORFLOW) == REACHED, "without the rules it is open"

    network.load(rules)
    network.load(rules)  # it replaces itself
    for host in (TO_OUTSIDER, TO_OUTSIDER6):
        assert network.knock(network.outsider, host, TENSORFLOW) == NOTHING
        assert network.connect(network.outsider, host, OTHER) == REACHED, "other ports are not its affair"
    dropped = network.dropped_packets()
    assert dropped > 0
    for host in (TO_MEMBER, TO_MEMBER6):
        assert network.connect(network.member, host, TENSORFLOW) == REACHED
    for host in LOCAL:
        assert network.connect(network.guarded, host, TENSORFLOW, uid=OWNER) == REACHED, "the machine itself"
    assert network.connect(network.guarded, OUTSIDER, OTHER, source_port=22250) == REACHED, "replies come in"
    assert network.dropped_packets() == dropped


@pytest.mark.parametrize("kind", long_but(["of the range"], ["of the range", "any"]))
def test_no_other_user_of_the_machine_reaches_a_port_of_the_job(network: Network, rules: Path, kind: str) -> None:
    """Also any port, as that of a private ps of a local stage, and also when he is the first to call there."""
    (port,) = network.listen(network.guarded, TENSORFLOW if kind == "of the range" else 0)
    assert network.connect(network.guarded, "127.0.0.1", port, uid=STRANGER) == REACHED, "without the rules it is open"
    network.load(rules)
    for host in LOCAL:
        assert network.knock(network.guarded, host, port, STRANGER) == NOTHING
    for uid in (OWNER, 0):
        for host in LOCAL:
            assert network.connect(network.guarded, host, port, uid=uid) == REACHED
    for host in LOCAL:
        assert network.knock(network.guarded, host, port, STRANGER) == NOTHING


def test_a_port_of_the_job_outside_of_the_range_is_closed_to_other_machines(network: Network, rules: Path) -> None:
    (port,) = network.listen(network.guarded, 0)
    network.load(rules)
    for host in (TO_OUTSIDER, TO_OUTSIDER6):
        assert network.knock(network.outsider, host, port) == NOTHING
    for host in (TO_MEMBER, TO_MEMBER6):
        assert network.connect(network.member, host, port) == REACHED


def test_what_is_dropped_has_never_reached_the_process(network: Network, rules: Path) -> None:
    network.load(rules)
    command = ["ip", "netns", "exec", network.guarded, sys.executable, "-c", LISTEN, str(OWNER), "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        port = int(server.stdout.readline().split()[1])
        for _ in range(2):
            network.knock(network.guarded, "127.0.0.1", port, STRANGER)
            network.knock(network.outsider, TO_OUTSIDER, port)
        assert network.connect(network.guarded, "127.0.0.1", port, uid=OWNER) == REACHED
        out, _ = server.communicate(timeout=30)
    assert out.count("accepted") == 1


@pytest.mark.long
def test_strangers_take_no_place_in_the_queue_of_a_port_that_is_known(network: Network, rules: Path) -> None:
    """Only a first packet is answered, in vain: by that the port is known."""
    (port,) = network.listen(network.guarded, 0)
    network.load(rules)
    network.knock(network.guarded, "127.0.0.1", port, STRANGER)
    network.knock(network.guarded, "127.0.0.1", port, STRANGER)
    assert network.dropped_packets("of_client") > 0
    network.knock(network.outsider, TO_OUTSIDER, port)
    assert network.dropped_packets() > 0


def test_ports_of_other_users_are_not_its_affair(network: Network, rules: Path) -> None:
    (port,) = network.listen(network.guarded, 0, uid=NEIGHBOUR)
    network.load(rules)
    for uid in (STRANGER, NEIGHBOUR, OWNER, 0):
        for host in LOCAL:
            assert network.connect(network.guarded, host, port, uid=uid) == REACHED
    assert network.connect(network.outsider, TO_OUTSIDER, port) == REACHED


def test_other_users_of_a_members_machine_do_not_reach_the_others(network: Network, rules: Path) -> None:
    """The guarded machine sees an address of a member; the rules of that member know its user."""
    network.listen(network.guarded, TENSORFLOW)
    network.load(rules)
    assert network.connect(network.member, TO_MEMBER, TENSORFLOW, uid=STRANGER) == REACHED, "without its rules"
    network.load(rules, network.member)
    for host in (TO_MEMBER, TO_MEMBER6):
        assert network.knock(network.member, host, TENSORFLOW, STRANGER) == NOTHING
        assert network.connect(network.member, host, TENSORFLOW, uid=OWNER) == REACHED
