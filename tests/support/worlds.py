"""What a process sees of the machine, so that a test can change it for some processes alone.

A process that the zygote forks enters its world before it does anything else.  Needs root; `refusal` says why it is not
possible here.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000  # unshare(2)
MS_REC, MS_BIND, MS_PRIVATE = 0x4000, 0x1000, 0x40000  # mount(2)


@dataclass(frozen=True)
class World:
    """binds: path -> the file or folder that is seen there instead.

    network: name of the network namespace, empty for that of the machine.
    variables: of the environment, where they are read when the process runs.
    environment: those that the process is started anew with, as one of its own.
    folder: the working directory.
    """

    binds: Mapping[str, str] = field(default_factory=dict)
    network: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""

    def facts(self) -> dict[str, Any]:
        """For the zygote."""
        return asdict(self)


def enter(facts: dict[str, Any]) -> None:
    """From now on this process is in the world with these facts, but for its environment."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: Any) -> None:
        if getattr(libc, name)(*arguments):
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")

    if facts["network"]:
        with Path(f"/run/netns/{facts['network']}").open() as namespace:
            call("setns", namespace.fileno(), CLONE_NEWNET)
    if facts["binds"]:
        call("unshare", CLONE_NEWNS)
        call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
        for path, seen in facts["binds"].items():
            call("mount", seen.encode(), path.encode(), None, MS_BIND, None)
    os.environ.update(facts["variables"])
    if facts["folder"]:
        os.chdir(facts["folder"])


def refusal() -> str:
    """Why no process can be put into a world of its own here; empty if it can."""
    if os.geteuid() != 0:
        return "needs root, for namespaces"
    if not shutil.which("unshare") or not shutil.which("mount"):
        return "needs unshare and mount (util-linux)"
    tried = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True, check=False)
    return f"no mount namespace here: {tried.stderr.strip()}" if tried.returncode else ""
