"""The TensorFlow server of a process."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError

# A server's boot name must differ from the name under which its own sessions address it.
BOOT_JOBS = {"ps": "ps", "worker": "local"}


def start_server(role: str, index: int, host: str, port: int, cpus: int = 1) -> tuple[Any, str]:
    """Starts the server; returns it and the address at which others reach it.  Port 0: the system chooses.

    cpus: CPU devices that it has; they share the cores of the machine.

    Raises:
        UsageError: the port is taken.
    """
    job = BOOT_JOBS[role]
    config = tf1.ConfigProto(device_count={"CPU": cpus, **({"GPU": 0} if role == "ps" else {})})
    config.experimental.disable_thread_spinning = True
    try:
        server = tf1.train.Server(
            tf1.train.ClusterSpec({job: {index: f"{host}:{port}"}}), job_name=job, task_index=index, config=config
        )
    except tf1.errors.OpError as error:
        raise UsageError(
            f"TensorFlow's server cannot listen on port {port}: is it in use? Give another --port, or 0 for any"
        ) from error
    return server, server.target.removeprefix("grpc://")
