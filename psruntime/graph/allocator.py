"""The C library's allocator, told how this process uses memory.  Where it is not glibc's nothing is told.

Memory that gRPC has freed is kept for the next step's tensors: otherwise glibc gives it back to the system after each
of them, and what arrives next is written into pages that the system has to find and clear first.

A thread has an arena of its own in glibc, up to 8 for each core, and an arena keeps what it once had.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

# Of mallopt (malloc.h): what glibc itself raises them to, at most, once memory of 32 MB was freed.
THRESHOLDS = {"MALLOC_TRIM_THRESHOLD_": (-1, 64 << 20), "MALLOC_MMAP_THRESHOLD_": (-3, 32 << 20)}
ARENA_MAX, M_ARENA_MAX = "MALLOC_ARENA_MAX", -8


def keep_freed_memory() -> None:
    """Unless the environment says otherwise."""
    if not THRESHOLDS.keys() & os.environ.keys():
        for parameter, value in THRESHOLDS.values():
            _tell(parameter, value)


def share_arenas() -> None:
    """One arena for each core, unless the environment says otherwise; before there are threads."""
    if ARENA_MAX not in os.environ:
        _tell(M_ARENA_MAX, os.cpu_count() or 1)


def _tell(parameter: int, value: int) -> None:
    if sys.platform == "linux" and "glibc.malloc" not in os.environ.get("GLIBC_TUNABLES", ""):
        mallopt: Any = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        if mallopt:
            mallopt(parameter, value)
