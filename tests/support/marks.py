"""Processes that are known by a variable in their environment, which whatever they start has, too."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def running_with(name: str, value: str) -> list[int]:
    """Pids of all processes that were started with this variable and have not ended, whoever knows of them."""
    wanted = f"{name}={value}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended while we looked
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found
