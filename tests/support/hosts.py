"""Several machines on one switch: network namespaces with names, IPv4 or IPv6 addresses and disks of their own."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support import away, worlds
from tests.support.worlds import World

PORT = "eth0"  # name of each host's interface
BRIDGE = "switch"


class Hosts:
    """names: of the hosts.  version: of the addresses that the names stand for, 4 or 6.

    Each sees a working directory and a disk of its own: `disk` is the same path on all, and another folder.
    """

    def __init__(self, names: Sequence[str], version: int, folder: Path, at_exit: ExitStack) -> None:
        mark = uuid.uuid4().hex[:8]
        self._switch = f"psruntime-{mark}-switch"
        self._networks = {name: f"psruntime-{mark}-{name}" for name in names}
        self.addresses = {
            name: f"10.9.4.{number}" if version == 4 else f"fd09:4::{number}" for number, name in enumerate(names, 1)
        }
        self._folder = folder
        self.disk = folder / "disk"
        self.disk.mkdir()
        known = folder / "hosts"
        local = "127.0.0.1 localhost" if version == 4 else "::1 localhost"
        known.write_text("".join(f"{each}\n" for each in (local, *(f"{a} {n}" for n, a in self.addresses.items()))))
        for network in (self._switch, *self._networks.values()):
            _run("ip", "netns", "add", network)
            at_exit.callback(_run, "ip", "netns", "delete", network)
            _run("ip", "-n", network, "link", "set", "lo", "up")
        _run("ip", "-n", self._switch, "link", "add", BRIDGE, "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", BRIDGE, "up")
        for number, (name, network) in enumerate(self._networks.items()):
            (folder / f"disk-of-{name}").mkdir()
            (folder / f"home-of-{name}").mkdir()
            plug = f"port{number}"
            cable = ["name", PORT, "type", "veth", "peer", "name", plug, "netns", self._switch]
            _run("ip", "-n", network, "link", "add", *cable)
            _run("ip", "-n", self._switch, "link", "set", plug, "master", BRIDGE, "up")
            nodad = ["nodad"] if version == 6 else []
            width = 24 if version == 4 else 64
            _run("ip", "-n", network, "address", "add", f"{self.addresses[name]}/{width}", "dev", PORT, *nodad)
            _run("ip", "-n", network, "link", "set", PORT, "up")

    def world(self, name: str, **environment: str) -> World:
        """What a process on this host sees."""
        binds = {"/etc/hosts": str(self._folder / "hosts"), str(self.disk): str(self.disk_of(name))}
        home = str(self._folder / f"home-of-{name}")
        return World(binds, self._networks[name], environment=environment, folder=home)

    def disk_of(self, name: str) -> Path:
        """Where this machine finds the host's disk."""
        return self._folder / f"disk-of-{name}"

    def limit(self, name: str, megabits: int) -> None:
        """What it sends travels so fast from now on, in Mbit/s."""
        shape = ["tbf", "rate", f"{megabits}mbit", "burst", "32kb", "latency", "200ms"]
        _run("tc", "-n", self._networks[name], "qdisc", "add", "dev", PORT, "root", *shape)

    def unplug(self, name: str) -> None:
        """From now on nothing reaches it."""
        self._set(name, "down")

    def plug_in(self, name: str) -> None:
        """After `unplug`."""
        self._set(name, "up")

    def load_firewall(self, name: str, rules: Path) -> None:
        """On this host, with nft."""
        _run("ip", "netns", "exec", self._networks[name], "nft", "-f", str(rules))

    def _set(self, name: str, state: str) -> None:
        number = list(self._networks).index(name)
        _run("ip", "-n", self._switch, "link", "set", f"port{number}", state)


@contextmanager
def hosts(names: Sequence[str], version: int, folder: Path) -> Iterator[Hosts]:
    """They are gone after the block."""
    with ExitStack() as at_exit:
        yield Hosts(names, version, folder, at_exit)


def refusal() -> str:
    """Why there can be no other machines here; empty if there can."""
    if lacks := [tool for tool in ("ip", "tc", "nft") if not shutil.which(tool)]:
        return f"needs {' and '.join(lacks)}: apt-get install iproute2 nftables"
    return away.refusal() or worlds.refusal()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
