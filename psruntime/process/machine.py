"""What this machine has: its processor, by which results are rounded, and its NVIDIA GPUs.

Nothing here needs TensorFlow: a worker chooses its GPU before it imports that.  The driver's NVML reports the GPUs, and
which process has how much of their memory; the package nvidia-ml-py, of the extra `gpu`, reads it.  Without it, or
without a driver, no GPU is reported.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psruntime.core.members.messages import GpuMemory, Machine
from psruntime.errors import UsageError

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


VISIBLE = "CUDA_VISIBLE_DEVICES"
HIDDEN = "-1"  # as the value of VISIBLE: no GPU
EXTRA = "pip install 'psruntime[gpu]'"
LOOK_S = 2.0  # between two looks at the memory
FIRST_NAMESPACE = 0xEFFFFFFC  # inode of the namespace of process ids with which Linux begins (include/linux/proc_ns.h)
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
    """All GPUs of this machine that answer; none where NVML cannot be read, as without a driver."""
    with _nvml() as nvml:
        if nvml is None:
            return []
        found = (_gpu(nvml, index) for index in range(_answer(nvml, nvml.nvmlDeviceGetCount) or 0))
        return [gpu for gpu in found if gpu]


def _gpu(nvml: Any, index: int) -> Gpu | None:
    """None: it is lost, or this process may not see it."""
    handle = _answer(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
    uuid, name, memory, processes = (
        _answer(nvml, ask, handle) if handle is not None else None
        for ask in (
            nvml.nvmlDeviceGetUUID,
            nvml.nvmlDeviceGetName,
            nvml.nvmlDeviceGetMemoryInfo,
            nvml.nvmlDeviceGetComputeRunningProcesses,
        )
    )
    if not (uuid and name and memory):
        return None
    held_bytes = {process.pid: process.usedGpuMemory or 0 for process in processes or ()}
    return Gpu(index, uuid, name, memory.total, memory.used, held_bytes)


def _answer(nvml: Any, ask: Callable[..., Any], *arguments: Any) -> Any:
    """None where the driver has no answer."""
    try:
        return ask(*arguments)
    except nvml.NVMLError:
        return None


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
        _answer(pynvml, pynvml.nvmlShutdown)


def visible_names(environment: Mapping[str, str] = os.environ) -> list[str] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES names, up to the first -1, as CUDA reads it; None: it is not set."""
    if VISIBLE not in environment:
        return None
    names = [name.strip() for name in environment[VISIBLE].split(",") if name.strip()]
    return names[: names.index(HIDDEN)] if HIDDEN in names else names


def smallest_memory(found: Sequence[Gpu], environment: Mapping[str, str] = os.environ) -> int | None:
    """Bytes of that visible GPU which has the least; None if none of the visible ones is known."""
    names = visible_names(environment)

    def is_visible(gpu: Gpu) -> bool:
        return names is None or any(name == str(gpu.index) or gpu.uuid.startswith(name) for name in names)

    return min((gpu.total_bytes for gpu in found if is_visible(gpu)), default=None)


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
    names = visible_names(environment)
    if names == []:
        raise UsageError(f"--devices gpu:auto: {VISIBLE}='{environment[VISIBLE]}' hides all GPUs")
    if names is None:
        names = [gpu.uuid for gpu in found()]
    if not names:
        raise UsageError(
            f"--devices gpu:auto: no GPU is known; it needs NVIDIA's driver, and nvidia-ml-py ({EXTRA}), unless "
            f"{VISIBLE} names the GPUs"
        )
    chosen = names[local_rank % len(names)]
    environment[VISIBLE] = chosen
    return chosen


def own_pid() -> int | None:
    """The id of this process as the driver knows it; None in a container with process ids of its own."""
    try:
        return os.getpid() if Path("/proc/self/ns/pid").stat().st_ino == FIRST_NAMESPACE else None
    except OSError:
        return None


class OwnMemory:
    """The GPUs on which this process holds memory, as they were when a thread of its own looked last."""

    def __init__(self, found: Callable[[], list[Gpu]] = gpus, pid: int | None = None) -> None:
        self._found = found
        self._pid = own_pid() if pid is None else pid
        self._held: tuple[GpuMemory, ...] = ()
        self._closed = threading.Event()

    def __call__(self) -> tuple[GpuMemory, ...]:
        return self._held

    def start(self) -> None:
        """Looks every LOOK_S until close(); a driver that does not answer holds up nothing but this."""
        if self._pid is not None:
            threading.Thread(target=self._look_again, name="gpu-memory", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _look_again(self) -> None:
        self.look()
        while not self._closed.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Looks once."""
        self._held = tuple(
            GpuMemory(gpu.index, gpu.name, gpu.held_bytes[self._pid], gpu.total_bytes)
            for gpu in self._found()
            if self._pid in gpu.held_bytes
        )


def memory_text(found: Sequence[Gpu], pid: int | None) -> str:
    """Of each GPU on which the process holds memory, how much is held by which process; empty if it holds none."""
    texts = []
    for gpu in found:
        if pid in gpu.held_bytes:
            others = [f"process {each} {gib_text(held)}" for each, held in gpu.held_bytes.items() if each != pid]
            own = f"this process holds {gib_text(gpu.held_bytes[pid])}"
            texts.append(f"{gpu} has {gib_text(gpu.total_bytes)}, of which {', '.join([own, *others])}")
    return "; ".join(texts)


def gib_text(count: int) -> str:
    """In GiB, or in MiB below one."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / (1 << 20):.0f} MiB"
