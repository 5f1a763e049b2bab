"""What the allocator is told, as a process of its own sees it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

ASK = """
import ctypes, os, sys, threading
from psruntime.graph import allocator
if sys.argv[1] == "share": allocator.share_arenas()
allocator.keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
barrier = threading.Barrier(3 * os.cpu_count())
def take():
    libc.malloc(ctypes.c_size_t(1000)); barrier.wait()
threads = [threading.Thread(target=take) for _ in range(3 * os.cpu_count())]
[t.start() for t in threads]; [t.join() for t in threads]
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.fdopen.restype = ctypes.c_void_p
libc.fflush.argtypes = [ctypes.c_void_p]
out = libc.fdopen(1, b"w")
libc.malloc_info(0, out); libc.fflush(out)
"""


def arenas(how: str, **environment: str) -> int:
    """How many a process with three threads a core that allocate has."""
    ran = subprocess.run([sys.executable, "-c", ASK, how], capture_output=True, text=True, env=environment, check=True)
    return ran.stdout.count("<heap nr=")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_threads_share_arenas_only_where_they_shall() -> None:
    cores = os.cpu_count() or 1
    assert arenas("share") <= cores
    assert arenas("apart") > cores
    assert cores < arenas("share", MALLOC_ARENA_MAX=str(cores + 3)) <= cores + 3, "the environment goes first"
