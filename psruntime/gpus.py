"""The NVIDIA GPUs of this machine, as the driver's NVML reports them, and which process holds how much of their memory.

Nothing here needs TensorFlow: a worker chooses its GPU before it imports that.  The package nvidia-ml-py, of the extra
`gpu`, reads NVML; without it, or without a driver, no GPU is reported.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psruntime.core.members.messages import GpuMemory
from psruntime.errors import UsageError

VISIBLE = "CUDA_VISIBLE_DEVICES"
HIDDEN = "-1"  # as the value of VISIBLE: no GPU
EXTRA = "pip install 'psruntime[gpu]'"
LOOK_S = 2.0  # between two looks at the memory; one takes about a millisecond
GIB = 1 << 30


@dataclass(frozen=True)
class Gpu:
    """index: in the order of PCI addresses, as nvidia-smi has it.  held_bytes: process id -> bytes that it holds."""

    index: int
    uuid: str
    name: str
    total_bytes: int
    used_bytes: int
    held_bytes: dict[int, int]

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name})"


def gpus() -> list[Gpu]:
    """All GPUs of this machine; none where NVML cannot be read, as without a driver, or when a GPU is lost."""
    with _nvml() as nvml:
        try:
            return [_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())] if nvml else []
        except nvml.NVMLError:
            return []


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    held_bytes = {process.pid: process.usedGpuMemory or 0 for process in processes}
    uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    return Gpu(index, uuid, name, memory.total, memory.used, held_bytes)


@contextmanager
def _nvml() -> Iterator[Any]:
    """The module pynvml, ready to be asked; None where it or the driver is missing, or the driver does not answer."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def choose_gpu(
    local_rank: int, environment: MutableMapping[str, str] = os.environ, found: Callable[[], list[Gpu]] = gpus
) -> str:
    """Makes one GPU visible to this process, before CUDA is initialised; returns its name in CUDA_VISIBLE_DEVICES.

    local_rank: number of this worker among those of its machine, from 0: it takes the GPU of this number, modulo the
    number of GPUs, so that workers share them in order where there are fewer.  What CUDA_VISIBLE_DEVICES has already,
    as Slurm sets it, is what there is to choose from.

    Raises:
        UsageError: there is no GPU, or it is not known which there are.
    """
    if VISIBLE in environment:
        names = [name.strip() for name in environment[VISIBLE].split(",") if name.strip()]
        if not names or HIDDEN in names:
            raise UsageError(f"--devices gpu:auto: {VISIBLE}='{environment[VISIBLE]}' hides all GPUs")
    else:
        names = [gpu.uuid for gpu in found()]
        if not names:
            raise UsageError(
                f"--devices gpu:auto: no GPU is known; it needs NVIDIA's driver, and nvidia-ml-py ({EXTRA}), unless "
                f"{VISIBLE} names the GPUs"
            )
    chosen = names[local_rank % len(names)]
    environment[VISIBLE] = chosen
    return chosen


class OwnMemory:
    """The GPUs on which this process holds memory; none in a container whose process ids the driver does not know.

    Each call may come from any thread, and looks again after LOOK_S at the earliest.
    """

    def __init__(self, found: Callable[[], list[Gpu]] = gpus) -> None:
        self._found = found
        self._lock = threading.Lock()
        self._looked_s = -LOOK_S
        self._held: tuple[GpuMemory, ...] = ()

    def __call__(self) -> tuple[GpuMemory, ...]:
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._looked_s >= LOOK_S:
                self._looked_s, pid = now_s, os.getpid()
                self._held = tuple(
                    GpuMemory(gpu.index, gpu.name, gpu.held_bytes[pid], gpu.total_bytes)
                    for gpu in self._found()
                    if pid in gpu.held_bytes
                )
            return self._held


def memory_text(found: list[Gpu], pid: int) -> str:
    """Of each GPU on which the process holds memory, how much is held by which process; empty if it holds none."""
    texts = []
    for gpu in found:
        if pid in gpu.held_bytes:
            others = [f"process {each} {bytes_text(held)}" for each, held in gpu.held_bytes.items() if each != pid]
            own = f"this process holds {bytes_text(gpu.held_bytes[pid])}"
            texts.append(f"{gpu} has {bytes_text(gpu.total_bytes)}, of which {', '.join([own, *others])}")
    return "; ".join(texts)


def bytes_text(count: int) -> str:
    """In GiB, or in MiB below one."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / (1 << 20):.0f} MiB"
