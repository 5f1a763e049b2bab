"""What the allocator is told, as a process of its own sees it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

ASK = """
import ctypes, os, sys, threading
from psruntime.graph.base import environment
if sys.argv[1] == "share": environment.share_arenas()
environment.keep_freed_memory()
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

FREE_MB = 64
TAKE_AND_FREE = f"""
import ctypes
from psruntime.graph.base import environment
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def resident_mb(): return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
blocks = [libc.malloc(ctypes.c_size_t(2**16)) for _ in range({FREE_MB} * 16)]
for block in blocks: libc.memset(block, 1, 2**16)
for block in blocks[:-1]: libc.free(block)
before = resident_mb(); environment.give_back(); print(before - resident_mb())
"""
of_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")


def arenas(how: str, **environment: str) -> int:
    """How many a process with three threads a core that allocate has."""
    ran = subprocess.run([sys.executable, "-c", ASK, how], capture_output=True, text=True, env=environment, check=True)
    return ran.stdout.count("<heap nr=")


@of_glibc
def test_threads_share_arenas_only_where_they_shall() -> None:
    cores = os.cpu_count() or 1
    assert arenas("share") <= cores
    assert arenas("apart") > cores
    assert cores < arenas("share", MALLOC_ARENA_MAX=str(cores + 3)) <= cores + 3, "the environment goes first"


@of_glibc
def test_what_is_free_below_a_block_in_use_is_given_back() -> None:
    ran = subprocess.run([sys.executable, "-c", TAKE_AND_FREE], capture_output=True, text=True, check=True)
    assert float(ran.stdout) > 0.9 * FREE_MB
