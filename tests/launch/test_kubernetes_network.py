"""The network policy of launch/kubernetes between machines that stand for pods: who reaches which port.

The rules are made of the policy here, as a network plugin makes them; each pod is a network namespace.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import hosts as hosts_support
from tests.support.hosts import PORT, Hosts, hosts
from tests.support.kubernetes import EXAMPLE, Object, of_kind, rendered, selects

pytestmark = pytest.mark.skipif(bool(hosts_support.refusal()), reason=hosts_support.refusal() or "possible")

JOB, SYSTEM = "digits", "kube-system"  # namespaces
OF_JOB = {"app.kubernetes.io/name": "psruntime"}
PODS: dict[str, tuple[str, dict[str, str]]] = {
    "ps": (JOB, OF_JOB),
    "worker": (JOB, OF_JOB),
    "client": (JOB, {"psruntime-client": "true"}),
    "stranger": (JOB, {}),
    "dns": (SYSTEM, {"k8s-app": "kube-dns"}),
    "storage": ("", {}),  # no pod: a machine outside of the cluster
}
STORAGE, STORAGE_NET = "192.0.2.7", "192.0.2.0/24"
COORDINATOR, TENSORFLOW, DNS, HTTPS = 2222, 40_001, 53, 443
PORTS = (COORDINATOR, TENSORFLOW, DNS, HTTPS)

LISTEN = """
import socket, sys
listeners = [socket.create_server(("", int(port))) for port in sys.argv[1:]]
print("listening", flush=True)
sys.stdin.read()
"""
SCAN = """
import concurrent.futures, socket, sys
def look(address):
    host, _, port = address.rpartition(":")
    with socket.socket() as caller:
        caller.settimeout(3.0)
        return caller.connect_ex((host, int(port)))
with concurrent.futures.ThreadPoolExecutor(99) as pool:
    for address, error in zip(sys.argv[1:], pool.map(look, sys.argv[1:])):
        print(address, error)
"""


class Pods:
    """All are on one switch, and listen at PORTS."""

    def __init__(self, network: Hosts, at_exit: ExitStack) -> None:
        self._network = network
        self.addresses = network.addresses | {"storage": STORAGE}
        self._inside("storage", "ip", "address", "add", f"{STORAGE}/24", "dev", PORT)
        for pod in PODS:
            if pod != "storage":
                self._inside(pod, "ip", "route", "add", STORAGE_NET, "dev", PORT)
        for pod in PODS:
            command = [*self._enter(pod), sys.executable, "-c", LISTEN, *map(str, PORTS)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            at_exit.callback(process.communicate, timeout=30)
            assert process.stdout and process.stdout.readline() == "listening\n"

    def enforce(self, policy: Object) -> None:
        """As a network plugin does, at each pod that the policy selects."""
        for pod, (namespace, labels) in PODS.items():
            if namespace == JOB and selects(policy["spec"]["podSelector"], labels):
                self._inside(pod, "nft", "-f", "-", text=self._rules(policy["spec"]))

    def reached_from(self, pod: str) -> set[tuple[str, int]]:
        """What other pods' ports a scan finds open."""
        found = {f"{self.addresses[other]}:{port}": (other, port) for other in PODS if other != pod for port in PORTS}
        lines = self._inside(pod, sys.executable, "-c", SCAN, *found).splitlines()
        assert len(lines) == len(found)
        return {found[line.split()[0]] for line in lines if line.split()[1] == "0"}

    def _rules(self, spec: Object) -> str:
        chains = []
        for hook, kind, side, where in ("input", "ingress", "from", "saddr"), ("output", "egress", "to", "daddr"):
            lines = [f"type filter hook {hook} priority filter; policy drop;", "ct state established,related accept"]
            for rule in spec[kind]:
                ports = [f"{p.get('protocol', 'TCP').lower()} dport {p['port']}" for p in rule.get("ports", ())]
                for address in self._peers(rule[side]):
                    lines += [f"ip {where} {address} {port} accept" for port in ports or [""]]
            chains.append(f"chain {hook} {{ {chr(10).join(lines)}\n }}")
        return f"table ip pods {{ {chr(10).join(chains)}\n }}"

    def _peers(self, peers: list[Object]) -> Iterator[str]:
        for peer in peers:
            if "ipBlock" in peer:
                yield peer["ipBlock"]["cidr"]
                continue
            for pod, (namespace, labels) in PODS.items():
                there = {"kubernetes.io/metadata.name": namespace}
                near = selects(peer["namespaceSelector"], there) if "namespaceSelector" in peer else namespace == JOB
                if namespace and near and selects(peer["podSelector"], labels):
                    yield self.addresses[pod]

    def _enter(self, pod: str) -> list[str]:
        return ["ip", "netns", "exec", self._network.world(pod).network]

    def _inside(self, pod: str, *command: str, text: str = "") -> str:
        done = subprocess.run([*self._enter(pod), *command], input=text, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    with hosts(list(PODS), 4, tmp_path) as network, ExitStack() as at_exit:
        yield Pods(network, at_exit)


@pytest.mark.long
def test_the_pods_of_a_job_are_reached_by_each_other_and_reach_what_is_named(pods: Pods) -> None:
    (policy,) = of_kind(rendered(EXAMPLE), "NetworkPolicy")
    everything = {(pod, port) for pod in PODS for port in PORTS}
    for pod in ("ps", "stranger"):
        assert pods.reached_from(pod) == {(other, port) for other, port in everything if other != pod}
    pods.enforce(policy)
    guarded = {("ps", port) for port in PORTS} | {("worker", port) for port in PORTS}
    allowed = {("dns", DNS), ("storage", HTTPS)}
    assert pods.reached_from("ps") == {found for found in guarded if found[0] == "worker"} | allowed
    assert pods.reached_from("worker") == {found for found in guarded if found[0] == "ps"} | allowed
    others = everything - guarded
    assert pods.reached_from("stranger") == {found for found in others if found[0] != "stranger"}
    of_client = {("ps", COORDINATOR), ("worker", COORDINATOR)}  # where the health of a worker is, too
    assert pods.reached_from("client") == {found for found in others if found[0] != "client"} | of_client
    assert pods.reached_from("storage") == {found for found in others if found[0] != "storage"}
