"""The TensorFlow server of a process, the devices of the jobs, and the GPUs that TensorFlow sees."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.config.process import split_address
from psruntime.errors import UsageError
from psruntime.graph.base.errors import device_error
from psruntime.graph.base.types import Op, Proto
from psruntime.network.interfaces import close_to_others
from psruntime.process.machine import EXTRA, VISIBLE, gpus, visible_names

DRIVER = "libcuda.so.1"
# What TensorFlow 2.21, built for CUDA 12, loads before it uses a GPU.
LIBRARIES = (
    "libcudart.so.12",
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcufft.so.11",
    "libcusolver.so.11",
    "libcusparse.so.12",
    "libcudnn.so.9",
)


@cache
def gpu_count() -> int:
    """GPUs that TensorFlow sees in this process, without virtual ones."""
    return len(tf.config.list_physical_devices("GPU"))


def log_gpus(log: Callable[..., None]) -> None:
    """Logs which GPUs TensorFlow sees; or why it sees none, on a machine that has some."""
    if count := gpu_count():
        log("gpus", count=count, visible=os.environ.get(VISIBLE, "all"))
    elif found := gpus():
        log("no_gpu", reason=f"this machine has {found[0]}, and TensorFlow sees none: {why_no_gpu()}")


def limit_gpus(limits_bytes: Sequence[int]) -> None:
    """Makes of each GPU as many devices as there are limits, with so much memory each, in all of this process.

    The configuration of the server has the same limits; TensorFlow's eager context, which a model's input may make
    first, follows these.

    Raises:
        UsageError: something has used a GPU already.
    """
    devices = [tf.config.LogicalDeviceConfiguration(memory_limit=limit >> 20) for limit in limits_bytes]
    try:
        for gpu in tf.config.list_physical_devices("GPU") if devices else ():
            tf.config.set_logical_device_configuration(gpu, devices)
    except RuntimeError as error:
        raise UsageError(f"--gpu-memory must be known before TensorFlow uses a GPU: {error}") from error


def may_be_on_gpu(operation: Op) -> bool:
    """Whether TensorFlow may place the operation on a GPU: it is on no ps and no CPU, and this process sees a GPU."""
    device = tf1.DeviceSpec.from_string(operation.device)
    return bool(gpu_count()) and device.job != "ps" and device.device_type != "CPU"


def why_no_gpu() -> str:
    """Why TensorFlow sees no GPU, and what helps."""
    if not tf.sysconfig.get_build_info()["is_cuda_build"]:
        return "this TensorFlow was built without CUDA; install the package tensorflow, not tensorflow-cpu"
    if visible_names() == []:
        return f"{VISIBLE}='{os.environ[VISIBLE]}' hides all GPUs"
    if not _is_there(DRIVER):
        return f"NVIDIA's driver is missing ({DRIVER}); install it, or give the container the GPUs of its host"
    missing = [name for name in LIBRARIES if not _is_there(name)]
    if missing:
        return f"libraries of CUDA are missing: {', '.join(missing)}; {EXTRA} installs them"
    return "the driver reports none; nvidia-smi shows what it has"


def _is_there(library: str) -> bool:
    """Whether the system's loader finds it, or one of the packages nvidia-*-cu12, where TensorFlow looks too."""
    packages = [Path(folder) / "nvidia" for folder in sys.path if folder]
    if any(True for package in packages for _ in package.glob(f"*/lib/{library}")):
        return True
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def ps_device(index: int) -> str:
    return f"/job:ps/task:{index}/device:CPU:0"


def worker_device(index: int) -> str:
    return f"/job:worker/task:{index}"


def worker_cpu(index: int) -> str:
    return f"{worker_device(index)}/device:CPU:0"


# A server's boot name must differ from the name under which its own sessions address it.
BOOT_JOBS = {"ps": "ps", "worker": "local"}


def start_server(
    role: str, index: int, host: str, port: int, interface: str, cpus: int = 1, gpu_limits: Sequence[int] = ()
) -> tuple[tf1.train.Server, str]:
    """Starts the server; returns it and the address at which others reach it.  Port 0: the system chooses.

    interface: the only one at which it is reached; empty: all.  cpus: CPU devices that it has; they share the cores of
    the machine.  gpu_limits: bytes, as `limit_gpus` has them.

    Raises:
        UsageError: the port is taken, or cannot be closed to the other interfaces.
        DeviceError: a GPU cannot be used.
    """
    job = BOOT_JOBS[role]
    config = server_config(cpus, gpu_limits, 0 if role == "ps" else gpu_count())
    try:
        server = tf1.train.Server(
            tf1.train.ClusterSpec({job: {index: f"{host}:{port}"}}), job_name=job, task_index=index, config=config,
            start=False,
        )  # fmt: skip
    except tf1.errors.OpError as error:
        raise device_error(error) or UsageError(
            f"TensorFlow's server cannot listen on port {port}: is it in use? Give another --port, or 0 for any"
        ) from error
    address = server.target.removeprefix("grpc://")
    try:
        if interface:
            close_to_others(split_address(address)[1], interface)
    except OSError as error:
        raise UsageError(
            f"TensorFlow's port cannot be closed to all interfaces but {interface}: {error.strerror or error}; give "
            "--interface any to leave it open on all of them (docs/security.md)"
        ) from error
    server.start()
    return server, address


def server_config(cpus: int, gpu_limits: Sequence[int], gpus: int) -> Proto:
    """The ConfigProto of a process's server, which makes its devices: that of a session cannot change them.

    gpus: that TensorFlow sees.  A worker's memory on them grows as it needs it, so that several workers share one: by
    default TensorFlow allocates all free memory when it starts.  The tensors of a worker with a GPU are in pinned
    memory of the host: tensors from a ps are copied to the GPU without a copy between (90 MB in 40 ms instead of 57).
    """
    config = tf1.ConfigProto(device_count={"CPU": cpus, **({} if gpus else {"GPU": 0})})
    # One thread for operations (inter_op) would make 10% more steps, and then a checkpoint that is written blocks them.
    config.experimental.disable_thread_spinning = True
    if gpus:
        options = config.gpu_options
        options.allow_growth = options.force_gpu_compatible = True
        for _ in range(gpus if gpu_limits else 0):
            options.experimental.virtual_devices.add(memory_limit_mb=[limit >> 20 for limit in gpu_limits])
    return config
