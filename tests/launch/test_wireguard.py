"""launch/wireguard.sh between network namespaces that it reaches by a program that only looks like ssh.

Where WireGuard is installed, packets go through it; elsewhere programs that look like it show what they are given.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.support import hosts as hosts_support
from tests.support.docs import ROOT
from tests.support.hosts import Hosts, hosts

pytestmark = pytest.mark.skipif(bool(hosts_support.refusal()), reason=hosts_support.refusal() or "possible")

PROG = "launch/wireguard.sh"
NAMES = ("a", "b", "c")
# A machine with an /etc and a /run of its own, which are gone with it.
MACHINE = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir /run/above /run/work
mount -t overlay -o lowerdir=/etc,upperdir=/run/above,workdir=/run/work overlay /etc
mount --bind "$1" /etc/hosts
echo ready
read
"""
SSH = """#!/bin/bash
host=${1#*@} folder=${0%/*}
shift
echo "$host" >> "$folder/calls"
nsenter --target "$(cat "$folder/$host.pid")" --mount --net sh -c "$*" | tee -a "$folder/out"
exit "${PIPESTATUS[0]}"
"""
FAKES = {
    "wg": """#!/bin/bash
case $1 in
    genkey) head -c 32 /dev/urandom | base64 ;;
    pubkey) sha256sum | head -c 32 | base64 ;;
    syncconf) cat "$3" > /run/synced ;;
    show) [ ! -e /run/silent ] || printf 'KEY=\\t0\\n' ;;
esac
""",
    "wg-quick": """#!/bin/bash
case $1 in
    up) ip link add "$2" type bridge ;;
    down) ip link delete "$2" ;;
    strip) cat "/etc/wireguard/$2.conf" ;;
esac
""",
}


def wireguard_refusal() -> str:
    """Why no packet goes through WireGuard here; empty if one does."""
    if not shutil.which("wg") or not shutil.which("wg-quick"):
        return "needs WireGuard: apt-get install wireguard-tools, and wireguard-go where the kernel has none"
    made = subprocess.run(["ip", "link", "add", "psruntime-wg", "type", "wireguard"], capture_output=True, check=False)
    if made.returncode == 0:
        subprocess.run(["ip", "link", "delete", "psruntime-wg"], check=True)
    elif not shutil.which("wireguard-go") or not Path("/dev/net/tun").exists():
        return "needs wireguard-go and /dev/net/tun, or a kernel with WireGuard"
    return ""


class Machines:
    """Three of them, in namespaces of a switch."""

    def __init__(self, network: Hosts, folder: Path, at_exit: ExitStack, programs: dict[str, str]) -> None:
        self.network, self.programs = network, folder / "programs"
        self.programs.mkdir()
        for name, text in {"ssh": SSH, **programs}.items():
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)
        for name in NAMES:
            at_exit.callback(self._kill_all, name)
            network_of = ["ip", "netns", "exec", network.world(name).network]
            command = [*network_of, "bash", "-c", MACHINE, "bash", str(folder / "hosts")]
            machine = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            at_exit.callback(machine.communicate, timeout=30)
            assert machine.stdout and machine.stdout.readline() == "ready\n"
            (self.programs / f"{name}.pid").write_text(str(machine.pid))

    def _kill_all(self, name: str) -> None:
        """A WireGuard that is a process outlives its machine after a failure."""
        network = self.network.world(name).network
        pids = subprocess.run(["ip", "netns", "pids", network], capture_output=True, text=True, check=False).stdout
        for pid in pids.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def run(self, *words: str) -> tuple[int, str, str]:
        environment = os.environ | {"PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}", "SSH": "ssh"}
        done = subprocess.run(
            [ROOT / PROG, *words], cwd=self.programs, env=environment, capture_output=True, text=True, timeout=120
        )
        return done.returncode, done.stdout, done.stderr

    def on(self, name: str, *command: str) -> str:
        """Output of a command on a machine."""
        done = subprocess.run(self.enter(name, *command), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def enter(self, name: str, *command: str) -> list[str]:
        """The command that runs this command on a machine."""
        pid = (self.programs / f"{name}.pid").read_text()
        return ["nsenter", f"--target={pid}", "--mount", "--net", *command]

    def conf(self, name: str) -> str:
        return self.on(name, "cat", "/etc/wireguard/wg-psruntime.conf")

    def went_over_ssh(self) -> str:
        return (self.programs / "out").read_text()


def made(tmp_path: Path, programs: dict[str, str]) -> Iterator[Machines]:
    with hosts(NAMES, 4, tmp_path) as network, ExitStack() as at_exit:
        yield Machines(network, tmp_path, at_exit, programs)


@pytest.fixture
def looks(tmp_path: Path) -> Iterator[Machines]:
    """Machines whose WireGuard only looks so."""
    yield from made(tmp_path, FAKES)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    if why := wireguard_refusal():
        pytest.skip(why)
    yield from made(tmp_path, {})


def test_each_machine_has_a_file_with_the_others_as_peers(looks: Machines) -> None:
    code, out, err = looks.run("a,root@b,c", "--port=7000", "--network", "10.7.8")
    assert (code, out, err) == (0, "a=10.7.8.1,root@b=10.7.8.2,c=10.7.8.3\n", ""), err
    keys = {name: looks.on(name, "cat", "/etc/wireguard/wg-psruntime.key").strip() for name in NAMES}
    public = {
        name: subprocess.run(
            ["bash", "-c", FAKES["wg"], "wg", "pubkey"], input=f"{key}\n", capture_output=True, text=True
        ).stdout.strip()
        for name, key in keys.items()
    }
    for number, name in enumerate(NAMES, 1):
        interface, *peers = looks.conf(name).strip().split("\n\n")
        assert interface.splitlines() == [
            "[Interface]", f"PrivateKey = {keys[name]}", f"Address = 10.7.8.{number}/24", "ListenPort = 7000",
        ]  # fmt: skip
        assert peers == [
            f"[Peer]\nPublicKey = {public[other]}\nAllowedIPs = 10.7.8.{peer}/32\nEndpoint = {other}:7000"
            for peer, other in enumerate(NAMES, 1)
            if other != name
        ]
    assert len(set(keys.values())) == 3


def test_a_private_key_stays_where_it_is_and_only_root_reads_it(looks: Machines) -> None:
    assert looks.run("a,b,c")[0] == 0
    for name in NAMES:
        assert looks.on(name, "cat", "/etc/wireguard/wg-psruntime.key").strip() not in looks.went_over_ssh()
        files = looks.on(name, "sh", "-c", "stat -c '%a %n' /etc/wireguard /etc/wireguard/*").splitlines()
        assert sorted(files) == [
            "600 /etc/wireguard/wg-psruntime.conf", "600 /etc/wireguard/wg-psruntime.key", "700 /etc/wireguard",
        ]  # fmt: skip


def test_a_host_that_is_added_does_not_disturb_the_others(looks: Machines) -> None:
    assert looks.run("a,b")[0] == 0
    before = (
        looks.on("a", "cat", "/etc/wireguard/wg-psruntime.key"),
        looks.on("a", "ip", "link", "show", "wg-psruntime"),
    )
    code, out, _ = looks.run("a,b,c")
    assert (code, out) == (0, "a=10.98.0.1,b=10.98.0.2,c=10.98.0.3\n")
    after = looks.on("a", "cat", "/etc/wireguard/wg-psruntime.key"), looks.on("a", "ip", "link", "show", "wg-psruntime")
    assert before == after, "neither a new key nor a new interface"
    assert looks.on("a", "cat", "/run/synced") == looks.conf("a") and "10.98.0.3" in looks.conf("a")


def test_down_removes_interface_files_and_keys(looks: Machines) -> None:
    assert looks.run("a,b")[0] == 0
    assert looks.run("--down", "a,b,c") == (0, "", "")
    for name in NAMES:
        assert not looks.on(name, "ls", "-A", "/etc/wireguard").strip()
        assert "wg-psruntime" not in looks.on(name, "ip", "link")


def test_a_machine_without_wireguard_ends_it(looks: Machines) -> None:
    (looks.programs / "wg-quick").unlink()
    if shutil.which("wg-quick"):
        pytest.skip("here it is installed")
    code, out, err = looks.run("a,b")
    assert (code, out) == (1, "")
    said = "wg and wg-quick are not installed: apt-get install wireguard-tools"
    assert err.splitlines() == [said, f"{PROG}: a is not ready, as it says above"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "HOSTS is missing: launch/wireguard.sh a,b,c; --help says more"),
        (["a", "b"], "HOSTS is missing: launch/wireguard.sh a,b,c; --help says more"),
        ([","], "there have to be 1 to 254 hosts in ,, and there are 0"),
        (["a,-oProxyCommand=x"], "'-oProxyCommand=x' is neither a file nor a host, as in a,b,c or user@a"),
        (["a,b$(id)"], "'b$(id)' is neither a file nor a host, as in a,b,c or user@a"),
        (["a,me@a"], "a host is named twice in a,me@a"),
        (["a", "--up"], "unknown option --up; --help lists them"),
        (["a", "--network", "10.98"], "--network must be three numbers as 10.98.0, got '10.98'"),
        (["a", "--network=10.98.256"], "--network must be three numbers as 10.98.0, got '10.98.256'"),
        (["a", "--port"], "--port must be a number from 1 to 65535, got ''"),
        (["a", "--port=65536"], "--port must be a number from 1 to 65535, got '65536'"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str) -> None:
    done = subprocess.run(
        [ROOT / PROG, *words], capture_output=True, text=True, timeout=60, env={**os.environ, "SSH": "/no"}
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{PROG}: {said}\n")


TALK = """
import socket, sys
here, port, text = sys.argv[1:]
with socket.socket() as caller:
    caller.settimeout(5)
    try:
        caller.connect((here, int(port)))
        caller.sendall(text.encode())
        print(caller.recv(1000).decode())
    except OSError as error:
        print(type(error).__name__)
"""
LISTEN = """
import select, socket, sys
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
tap.bind(("eth0", 0))
listener = socket.create_server(("", 0))
print(listener.getsockname()[1], flush=True)
seen = b""
while True:
    for ready in select.select([tap, listener, sys.stdin], [], [])[0]:
        if ready is tap:
            seen += tap.recv(65536)
        elif ready is listener:
            caller, where = listener.accept()
            caller.sendall(where[0].encode() + b" says " + caller.recv(1000))
            caller.close()
        else:
            print(sys.argv[1].encode() in seen)
            sys.exit()
"""
SECRET = "a tensor of the job"


class Talk:
    """A server on machine b, and what was seen on its cable."""

    def __init__(self, machines: Machines, at_exit: ExitStack) -> None:
        self._machines = machines
        command = machines.enter("b", sys.executable, "-c", LISTEN, SECRET)
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        at_exit.callback(self._server.communicate, timeout=30)
        assert self._server.stdout
        self._port = self._server.stdout.readline().strip()

    def to(self, address: str, name: str = "a") -> str:
        """What a program on this machine gets as an answer from there."""
        return self._machines.on(name, sys.executable, "-c", TALK, address, self._port, SECRET).strip()

    def was_seen(self) -> bool:
        """Whether what was said went over the cable of machine b in clear; the server ends."""
        out, _ = self._server.communicate("", timeout=30)
        return out.strip() == "True"


def test_what_members_say_travels_encrypted_at_the_addresses_that_are_printed(machines: Machines) -> None:
    code, out, err = machines.run("a,b,c")
    assert (code, out, err) == (0, "a=10.98.0.1,b=10.98.0.2,c=10.98.0.3\n", "")
    for address, seen in ("10.98.0.2", False), (machines.network.addresses["b"], True):
        with ExitStack() as at_exit:
            talk = Talk(machines, at_exit)
            caller = "10.98.0.1" if not seen else machines.network.addresses["a"]
            assert talk.to(address) == f"{caller} says {SECRET}"
            assert talk.was_seen() == seen
    find = "from psruntime.network.interfaces import owner_of; print(owner_of('10.98.0.1'))"
    assert machines.on("a", "env", f"PYTHONPATH={ROOT}", sys.executable, "-c", find).strip() == "wg-psruntime"


def test_an_address_is_of_the_machine_that_has_its_key(machines: Machines) -> None:
    assert machines.run("a,b,c")[0] == 0
    with ExitStack() as at_exit:
        talk = Talk(machines, at_exit)
        assert talk.to("10.98.0.2", "c").startswith("10.98.0.3 says")
        machines.on("a", "ip", "address", "add", "10.98.0.3/32", "dev", "wg-psruntime")
        machines.on("a", "ip", "route", "replace", "10.98.0.2", "dev", "wg-psruntime", "src", "10.98.0.3")
        assert talk.to("10.98.0.2") == "TimeoutError", "nothing that it sends as the other arrives"


def test_a_machine_is_added_and_the_network_is_removed(machines: Machines) -> None:
    assert machines.run("a,b")[0] == 0
    with ExitStack() as at_exit:
        talk = Talk(machines, at_exit)
        assert talk.to("10.98.0.2").startswith("10.98.0.1 says")
        assert machines.run("a,b,c")[1] == "a=10.98.0.1,b=10.98.0.2,c=10.98.0.3\n"
        assert talk.to("10.98.0.2").startswith("10.98.0.1 says") and talk.to("10.98.0.2", "c").startswith("10.98.0.3")
        assert machines.run("--down", "a,b,c") == (0, "", "")
        assert talk.to("10.98.0.2") == "OSError"
    for name in NAMES:
        assert "wg-psruntime" not in machines.on(name, "ip", "link")


def test_a_machine_that_does_not_answer_is_named(machines: Machines) -> None:
    """As behind a firewall that drops UDP."""
    drop = "table ip drops { chain in { type filter hook input priority 0; udp dport 51820 drop; }\n }"
    machines.on("c", "nft", drop)
    code, out, err = machines.run("a,b,c")
    assert (code, out) == (1, "")
    where = machines.network.addresses["c"]
    assert err.splitlines()[0] == f"nothing answers at {where}:51820; does UDP pass?"
    assert err.splitlines()[1:] == [f"{PROG}: a is not ready, as it says above"]
