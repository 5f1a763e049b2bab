"""Two machines joined by a cable of limited speed: network namespaces, of which this machine's network sees nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.jobs import Machine
from benchmarks.processes import cleaning_up

HOSTS = ("10.9.3.1", "10.9.3.2")
CABLE = "cable"  # name of the interface at both ends
BURST_S = 0.005  # of the speed that may pass at once; the kernel needs some for a fast link
LEAST_BURST = 131_072  # bytes: more than the largest packet that a sender hands on
LATENCY = "50ms"  # that a packet waits at most; then it is dropped, as at a switch
COMMAND_S = 60.0


@contextmanager
def link(megabits: int) -> Iterator[tuple[Machine, Machine]]:
    """Both, with so many Mbit/s in each direction; they are gone after the block."""
    mark = uuid.uuid4().hex[:8]
    names = [f"psruntime-{mark}-{end}" for end in "ab"]
    burst = max(LEAST_BURST, int(megabits * 1e6 / 8 * BURST_S))
    limit = ["tbf", "rate", f"{megabits}mbit", "burst", str(burst), "latency", LATENCY]
    with cleaning_up(), ExitStack() as at_exit:
        for name in names:
            run("ip", "netns", "add", name)
            at_exit.callback(run, "ip", "netns", "delete", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        ends = ["name", CABLE, "type", "veth", "peer", "name", CABLE, "netns", names[1]]
        run("ip", "-n", names[0], "link", "add", *ends)
        for name, host in zip(names, HOSTS, strict=True):
            run("ip", "-n", name, "address", "add", f"{host}/24", "dev", CABLE)
            run("ip", "-n", name, "link", "set", CABLE, "up")
            run("tc", "-n", name, "qdisc", "add", "dev", CABLE, "root", *limit)
        one, other = (Machine(host, within(name)) for name, host in zip(names, HOSTS, strict=True))
        yield one, other


def within(name: str) -> tuple[str, ...]:
    return ("ip", "netns", "exec", name)


def missing() -> str:
    """Why there can be no link here; empty if there can."""
    if lacks := [tool for tool in ("ip", "tc") if not shutil.which(tool)]:
        return f"needs {' and '.join(lacks)}: apt-get install iproute2"
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    try:
        with link(100):
            return ""
    except ValueError as error:
        return str(error)


def run(*command: str) -> None:
    """Raises:
    ValueError: it failed; the text says how.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S)
    if done.returncode:
        raise ValueError(f"{' '.join(command)}: {done.stderr.strip()}")
