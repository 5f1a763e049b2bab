"""Towers: the copies of a model that a worker has on several devices, each for a mini-batch of every step.

They read the same pulled values.  A worker without --devices has one, and TensorFlow chooses its device.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import tensorflow.compat.v1 as tf1

from psruntime.config.devices import ALL_GPUS, AUTO_GPU, number_of
from psruntime.errors import UsageError
from psruntime.graph.base.devices import worker_device
from psruntime.graph.base.gpus import gpu_count, why_no_gpu


@dataclass(frozen=True)
class Towers:
    """devices: `kind:number` of each tower; none: there is one, on the device that TensorFlow chooses."""

    devices: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return max(1, len(self.devices))

    @property
    def cpus(self) -> int:
        """How many CPU devices the worker's server needs."""
        return 1 + max((number_of(name) for name in self.devices if name.startswith("cpu")), default=0)

    def scope(self) -> AbstractContextManager[None]:
        """The device of the first tower; operations that name a device themselves are not moved."""
        return tf1.device(_full(self.devices[0])) if self.devices else nullcontext()

    def moved(self, minibatch: int, index: int) -> Callable[[str], str]:
        """A function of an operation's device in the first tower: its device in that of this mini-batch.

        An operation moves if it is on the first tower's device, or on none of the worker's.
        """
        tower = minibatch % self.count
        if tower == 0:
            return lambda device: device
        own = tf1.DeviceSpec.from_string(worker_device(index))
        first = own.make_merged_spec(tf1.DeviceSpec.from_string(_full(self.devices[0])))
        there = own.make_merged_spec(tf1.DeviceSpec.from_string(_full(self.devices[tower]))).to_string()
        return lambda device: there if tf1.DeviceSpec.from_string(device) in (own, first) else device


ONE_TOWER = Towers()


def find_towers(names: tuple[str, ...], per_gpu: int = 1) -> Towers:
    """The towers on the devices of these names, see psruntime/config/devices.py.

    per_gpu: virtual GPUs of each GPU.  With gpu:auto the GPU was chosen, and is the only one by now.

    Raises:
        UsageError: this machine has no such GPU, as far as TensorFlow sees.
    """
    text = ",".join(names)
    if not any(name.startswith("gpu") for name in names):
        return Towers(names)
    gpus = gpu_count() * per_gpu
    if not gpus:
        raise UsageError(f"--devices {text}: TensorFlow finds no GPU on this machine: {why_no_gpu()}")
    if names in ((ALL_GPUS,), (AUTO_GPU,)):
        names = tuple(f"gpu:{number}" for number in range(gpus))
    if any(name.startswith("gpu") and number_of(name) >= gpus for name in names):
        raise UsageError(
            f"--devices {text}: TensorFlow finds {gpus} GPU, gpu:0 to gpu:{gpus - 1}, on this machine; --gpu-memory "
            "with several amounts makes virtual ones"
        )
    return Towers(names)


def _full(name: str) -> str:
    """TensorFlow's name of a device within a task."""
    kind, _, number = name.partition(":")
    return f"/device:{kind.upper()}:{number}"
