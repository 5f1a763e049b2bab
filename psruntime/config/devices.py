"""The devices of one worker, as --devices names them, each of which computes a mini-batch of its own in a step; and how
much memory of a GPU it may take, as --gpu-memory says it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from psruntime.errors import UsageError

ALL_GPUS, AUTO_GPU = "gpu:all", "gpu:auto"
MOST_CPUS = 64  # virtual ones are for trying things out: they share the machine's cores
_UNITS = {"GiB": 1 << 30, "GB": 10**9, "MiB": 1 << 20, "MB": 10**6}
_AMOUNT = re.compile(rf"([0-9]+(?:\.[0-9]+)?)({'|'.join(_UNITS)})")
LEAST_BYTES = 1 << 20
_DEVICE = re.compile(r"(cpu|gpu):(0|[1-9][0-9]{0,3})")


def device_names(text: str) -> tuple[str, ...]:
    """The names in `text`, which are lower-case `kind:number`, or `gpu:all` or `gpu:auto` alone; none if it is empty.

    Raises:
        UsageError: a name is no such, or stands there twice.
    """
    names = tuple(name.strip() for name in text.lower().split(",")) if text else ()
    if names in ((ALL_GPUS,), (AUTO_GPU,)):
        return names
    for name in names:
        if not _DEVICE.fullmatch(name):
            raise UsageError(
                f"devices must be cpu:N or gpu:N, with commas between them, gpu:all or gpu:auto; got '{name}'"
            )
        if names.count(name) > 1:
            raise UsageError(f"devices names {name} twice; each device computes one mini-batch of a step")
        if name.startswith("cpu") and number_of(name) >= MOST_CPUS:
            raise UsageError(f"devices goes up to cpu:{MOST_CPUS - 1}, got {name}")
    return names


def number_of(name: str) -> int:
    """That of `kind:number`."""
    return int(name.partition(":")[2])


@dataclass(frozen=True)
class GpuLimit:
    """share: fraction of each GPU's memory that a process may take; None: all that it needs.

    split_bytes: if it is not empty, each GPU is as many virtual ones, with so much memory each; TensorFlow numbers all
    of them through, gpu:0, gpu:1, ...
    """

    share: float | None = None
    split_bytes: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: str) -> GpuLimit:
        """Parses a fraction as `0.4`, an amount as `20GiB`, or amounts with commas between them.

        Raises:
            UsageError: it is none of them.
        """
        if not text:
            return cls()
        amounts = [_AMOUNT.fullmatch(each.strip()) for each in text.split(",")]
        found = tuple(int(float(amount[1]) * _UNITS[amount[2]]) for amount in amounts if amount)
        if len(found) == len(amounts) and min(found) >= LEAST_BYTES:
            return cls(split_bytes=found)
        try:
            share = float(text)
        except ValueError:
            share = 0.0
        if not 0 < share <= 1:
            raise UsageError(
                "gpu_memory must be an amount as 20GiB (GiB, GB, MiB or MB; at least 1 MiB), or a fraction of the "
                f"GPU's memory above 0 and up to 1, got '{text}'"
            )
        return cls(share=share)

    def limits(self, total_bytes: int | None) -> tuple[int, ...]:
        """Bytes of each device that a GPU with so much memory is made into; none: it is one, without a limit.

        Raises:
            UsageError: a fraction is wanted, and the memory of the GPU is not known.
        """
        if self.share is None:
            return self.split_bytes
        if total_bytes is None:
            raise UsageError(
                f"--gpu-memory {self.share:g}: the memory of the GPU is not known, which nvidia-ml-py reads (the extra "
                "gpu); give an amount, as 20GiB"
            )
        limit = int(self.share * total_bytes)
        if limit < LEAST_BYTES:
            raise UsageError(f"--gpu-memory {self.share:g} is less than 1 MiB of a GPU with {total_bytes} bytes")
        return (limit,)
