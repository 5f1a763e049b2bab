"""What decides how this process rounds on the CPU: its model, the threads of an operation, and TensorFlow's version."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

from psruntime.core.members.messages import Machine

CPUINFO = Path("/proc/cpuinfo")
THREADS = "TF_NUM_INTRAOP_THREADS"  # of the environment, as TensorFlow reads it
PROCESSOR_CHARS = 256


def this_machine(tensorflow: str) -> Machine:
    """tensorflow: its version.  The threads are those of one operation, as TensorFlow chooses their number for a
    process that does not."""
    given = os.environ.get(THREADS, "")
    threads = int(given) if given.isdecimal() and int(given) else len(os.sched_getaffinity(0))
    return Machine(_processor()[:PROCESSOR_CHARS], threads, tensorflow)


def _processor() -> str:
    """The model by name and number: the name alone may be one for many, on a virtual machine."""
    facts: dict[str, str] = {}
    with suppress(OSError):
        for line in CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), " ".join(value.split()))
    numbers = ", ".join(f"{name} {facts[name]}" for name in ("cpu family", "model", "stepping") if name in facts)
    name = facts.get("model name") or platform.processor() or platform.machine()
    return f"{name} ({numbers})" if numbers else name
