"""The devices of one worker, as --devices names them: each computes a mini-batch of its own in a step."""

from __future__ import annotations

import re

from psruntime.errors import UsageError

ALL_GPUS = "gpu:all"
MOST_CPUS = 64  # virtual ones are for trying things out: they share the machine's cores
_DEVICE = re.compile(r"(cpu|gpu):(0|[1-9][0-9]{0,3})")


def device_names(text: str) -> tuple[str, ...]:
    """The names in `text`, which are lower-case `kind:number`, or `gpu:all` alone; none if it is empty.

    Raises:
        UsageError: a name is no such, or stands there twice.
    """
    names = tuple(name.strip() for name in text.lower().split(",")) if text else ()
    if names == (ALL_GPUS,):
        return names
    for name in names:
        if not _DEVICE.fullmatch(name):
            raise UsageError(f"devices must be cpu:N or gpu:N, with commas between them, or gpu:all; got '{name}'")
        if names.count(name) > 1:
            raise UsageError(f"devices names {name} twice; each device computes one mini-batch of a step")
        if name.startswith("cpu") and number_of(name) >= MOST_CPUS:
            raise UsageError(f"devices goes up to cpu:{MOST_CPUS - 1}, got {name}")
    return names


def number_of(name: str) -> int:
    """That of `kind:number`."""
    return int(name.partition(":")[2])
