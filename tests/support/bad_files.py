"""Files that fail as those of a broken disk do, also for root."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def make_unreadable(path: Path, opens: bool = True) -> None:
    """Puts a file there whose reads fail with EIO; with opens=False one that cannot be opened: ENXIO."""
    path.unlink(missing_ok=True)
    if opens:
        path.symlink_to("/proc/self/mem")
    else:
        os.mknod(path, stat.S_IFSOCK | 0o600)


def make_full(path: Path) -> None:
    """Puts a file there whose writes fail with ENOSPC."""
    path.symlink_to("/dev/full")


def make_folder(path: Path) -> None:
    """Puts a folder in the place of a file: EISDIR."""
    path.unlink(missing_ok=True)
    path.mkdir()


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
