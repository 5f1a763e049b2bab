"""Settings of the C library's allocator that suit a ps and a worker.  They apply to glibc only.

The threads of a process share arenas: each has one of its own in glibc, up to 8 for each core, and an arena keeps what
it once had, so what gRPC receives would take its memory several times over.

A ps keeps the memory that gRPC has freed for the next step's tensors: otherwise glibc gives it back to the system after
each of them, and the next tensors are written into pages that the system has to find and clear first.

A worker gives back, once it trains, what it needed only to build its graph.  Once is enough: what gRPC frees is taken
again by the next step.  Tensors from 256 kB on are not malloc's; from malloc (TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1), with a
low threshold that gives them back, a step took 915 ms instead of 500.
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
    """Keeps freed memory for the next tensors, unless the environment sets it otherwise."""
    if not THRESHOLDS.keys() & os.environ.keys():
        for parameter, value in THRESHOLDS.values():
            _set(parameter, value)


def share_arenas() -> None:
    """Uses one arena for each core, unless the environment sets another number.

    To be called before threads start: once there are more than eight arenas glibc keeps the limit that it has.
    """
    if ARENA_MAX not in os.environ:
        _set(M_ARENA_MAX, os.cpu_count() or 1)


def give_back() -> None:
    """Gives free memory back to the system, also from the middle of the arenas; it takes some tens of ms."""
    _call("malloc_trim", 0)


def _set(parameter: int, value: int) -> None:
    if "glibc.malloc" not in os.environ.get("GLIBC_TUNABLES", ""):
        _call("mallopt", parameter, value)


def _call(function: str, *arguments: int) -> None:
    """Calls one of glibc's own; where it is missing, as in musl, nothing is done."""
    if sys.platform != "linux":
        return
    try:
        called: Any = getattr(ctypes.CDLL(None), function)
    except (OSError, AttributeError):  # a program without shared libraries; musl
        return
    called(*arguments)
