"""A file system of its own in a folder, which a test can fill."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIZE = "512m"  # in memory, as far as it is used


class SmallDisk:
    """In `folder`, which is made."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Nothing is left, also while others write."""
        room = os.statvfs(self._folder)
        taken, more = 0, room.f_bavail * room.f_frsize
        with self._filler.open("wb") as file:
            while more >= room.f_frsize:
                try:
                    os.posix_fallocate(file.fileno(), taken, more)
                except OSError:
                    more //= 2
                else:
                    taken += more

    def free(self) -> None:
        self._filler.unlink()


@contextmanager
def small_disk(folder: Path, size: str = SIZE) -> Iterator[SmallDisk]:
    """What is on it is gone at the end.  Needs root, see worlds.refusal()."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "psruntime-test", str(folder)], check=True)
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", str(folder)], check=True)
