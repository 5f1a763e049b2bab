"""What the system shows of this process to others, without the secrets' paths.

A TensorFlow server reads any file for its client, as the user of the process.  Its client finds a secret where the
process names it: in /proc/self/cmdline, which all users read, in /proc/self/environ, and in /proc/self/mem.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

from psruntime.config.process import SecurityConfig

STAT = Path("/proc/self/stat")
ARGUMENTS, ENVIRONMENT_END = 48 - 3, 51 - 3  # fields arg_start and env_end of proc_pid_stat(5), from the state on
PR_SET_DUMPABLE = 4  # of prctl(2)
NAMED = (b"--", b"PSRUNTIME_")  # how a word begins that has a name and a value, with "=" between
VARIABLES = {f"PSRUNTIME_{each.name.upper()}" for each in fields(SecurityConfig)}


def hide(config: SecurityConfig) -> None:
    """Overwrites the secrets and their paths in this process's arguments and environment, as the kernel shows them.

    From then on the files of the process in /proc that only its user may read, its memory among them, are root's, and
    there is no core dump.  Children have the environment as it was.  Without effect on a system without /proc.
    """
    found = (config.tls_cert, config.tls_key, config.token_file, config.read_token_file, config.token)
    secrets = {os.fsencode(text) for text in found if text}
    with suppress(OSError, AttributeError, IndexError, ValueError):
        numbers = STAT.read_text().rpartition(")")[2].split()
        begin, end = int(numbers[ARGUMENTS]), int(numbers[ENVIRONMENT_END])
        place = begin
        for word in (ctypes.string_at(begin, end - begin) if end > begin > 0 else b"").split(b"\0"):
            value = word.partition(b"=")[2] if word.startswith(NAMED) and b"=" in word else word
            if value in secrets:
                ctypes.memset(place + len(word) - len(value), ord("*"), len(value))
            place += len(word) + 1
        for name in os.environ.keys() & VARIABLES:
            os.environ[name] = os.environ[name]  # elsewhere in memory
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
