"""The TensorFlow server of a process, and the devices of the jobs."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.graph.base.errors import device_error
from psruntime.graph.base.gpus import gpu_count
from psruntime.graph.base.types import Proto


def ps_device(index: int) -> str:
    return f"/job:ps/task:{index}/device:CPU:0"


def worker_device(index: int) -> str:
    return f"/job:worker/task:{index}"


def worker_cpu(index: int) -> str:
    return f"{worker_device(index)}/device:CPU:0"


# A server's boot name must differ from the name under which its own sessions address it.
BOOT_JOBS = {"ps": "ps", "worker": "local"}


def start_server(
    role: str, index: int, host: str, port: int, cpus: int = 1, gpu_limits: Sequence[int] = ()
) -> tuple[tf1.train.Server, str]:
    """Starts the server; returns it and the address at which others reach it.  Port 0: the system chooses.

    cpus: CPU devices that it has; they share the cores of the machine.  gpu_limits: bytes, as `limit_gpus` has them.

    Raises:
        UsageError: the port is taken.
        DeviceError: a GPU cannot be used.
    """
    job = BOOT_JOBS[role]
    config = server_config(cpus, gpu_limits, 0 if role == "ps" else gpu_count())
    try:
        server = tf1.train.Server(
            tf1.train.ClusterSpec({job: {index: f"{host}:{port}"}}), job_name=job, task_index=index, config=config
        )
    except tf1.errors.OpError as error:
        raise device_error(error) or UsageError(
            f"TensorFlow's server cannot listen on port {port}: is it in use? Give another --port, or 0 for any"
        ) from error
    return server, server.target.removeprefix("grpc://")


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
