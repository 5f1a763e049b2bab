"""A second machine: a network namespace with a cable to this one, of which either direction can be cut."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

NO_WRITER = "02:00:00:00:00:99"  # a hardware address: who gets a packet for it drops it


class Away:
    """network: the name of the namespace.  here, there: the addresses of this machine and of that one."""

    def __init__(self, mark: str) -> None:
        self.network = f"psruntime-{mark}"
        subnet = f"10.{64 + int(mark[:2], 16) % 64}.{int(mark[2:4], 16)}"  # one of its own, others may be there
        self.here, self.there = f"{subnet}.1", f"{subnet}.2"
        self._here, self._there = f"psr{mark}a", f"psr{mark}b"
        self._ip("netns", "add", self.network)
        self._ip("link", "add", self._here, "type", "veth", "peer", "name", self._there, "netns", self.network)
        self._ip("address", "add", f"{self.here}/24", "dev", self._here)
        self._ip("link", "set", self._here, "up")
        self._inside("address", "add", f"{self.there}/24", "dev", self._there)
        self._inside("link", "set", self._there, "up")
        self._inside("link", "set", "lo", "up")

    def cut_from(self) -> None:
        """What it sends does not arrive."""
        self._inside("neigh", "replace", self.here, "lladdr", NO_WRITER, "dev", self._there, "nud", "permanent")

    def cut_to(self) -> None:
        """What is sent to it does not arrive."""
        self._ip("neigh", "replace", self.there, "lladdr", NO_WRITER, "dev", self._here, "nud", "permanent")

    def unplug(self) -> None:
        """It is as if it were down."""
        self._ip("link", "set", self._here, "down")

    def mend(self) -> None:
        """After either cut."""
        self._inside("neigh", "flush", "dev", self._there, "nud", "permanent")
        self._ip("neigh", "flush", "dev", self._here, "nud", "permanent")

    def close(self) -> None:
        self._ip("netns", "delete", self.network)  # and both ends of the cable with it

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    def _inside(self, *words: str) -> None:
        self._ip("-n", self.network, *words)


@contextmanager
def away() -> Iterator[Away]:
    machine = Away(uuid.uuid4().hex[:6])
    try:
        yield machine
    finally:
        machine.close()


def refusal() -> str:
    """Why there can be no second machine here; empty if there can."""
    if not shutil.which("ip") or os.geteuid() != 0:
        return "needs ip (iproute2) and root, for a network namespace"
    name = f"psruntime-{uuid.uuid4().hex[:6]}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"no network namespace here: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return ""
