"""What the links can carry: between host and GPU within a process, and through TCP between two on this machine.

python -m benchmarks.gpu.links
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from typing import Any

from benchmarks.processes import PYTHON

SIZE = 90 << 20  # bytes
TIMES = 20
MESSAGE = 4 << 20
FOR_S = 1.0
COPIES_S = 60.0


def measured() -> str:
    """By a process of its own, since what TensorFlow takes of a GPU stays taken."""
    try:
        ran = subprocess.run([*PYTHON, __spec__.name], capture_output=True, text=True, timeout=COPIES_S, check=False)
        of_gpu = ran.stdout.strip() or ran.stderr[-500:]
    except subprocess.TimeoutExpired:
        of_gpu = f"copies were not measured within {COPIES_S:g} s"
    return f"{of_gpu}\n{loopback()}"


def copies() -> str:
    """GB/s between pinned memory and the GPU."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow.compat.v1 as tf1

    tf1.disable_v2_behavior()
    config = tf1.ConfigProto()
    config.gpu_options.allow_growth = config.gpu_options.force_gpu_compatible = True
    config.graph_options.rewrite_options.disable_meta_optimizer = True

    def rate(source: str, destination: str) -> float:
        with tf1.Graph().as_default(), tf1.Session(config=config) as session:
            with tf1.device(source):
                zeros = tf1.zeros_initializer()
                held = tf1.get_local_variable("held", [SIZE // 4], initializer=zeros, use_resource=True)
                read: Any = held.read_value()
            with tf1.device(destination):
                first = tf1.identity(read)[0]
            session.run(held.initializer)
            call = session.make_callable(first)
            call()
            began_s = time.monotonic()
            for _ in range(TIMES):
                call()
            return SIZE * TIMES / (time.monotonic() - began_s) / 1e9

    to_gpu, to_host = rate("/cpu:0", "/gpu:0"), rate("/gpu:0", "/cpu:0")
    return f"copies of 90 MiB: host to GPU {to_gpu:.1f} GB/s, GPU to host {to_host:.1f} GB/s"


def loopback() -> str:
    """GB/s through one TCP connection, from one process to another: no ps can give more through one."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    program = f"import socket\ns = socket.create_connection({address!r})\nb = bytes({MESSAGE})\nwhile 1: s.sendall(b)"
    sender = subprocess.Popen([PYTHON[0], "-c", program], stderr=subprocess.DEVNULL)
    stop = threading.Timer(FOR_S, sender.kill)
    connection, _ = listener.accept()
    with listener, connection:
        stop.start()
        room, received, began_s = bytearray(MESSAGE), 0, time.monotonic()
        try:
            while count := connection.recv_into(room):
                received += count
        except ConnectionError:
            pass
        took_s = time.monotonic() - began_s
    sender.wait()
    return f"TCP on this machine, one connection: {received / took_s / 1e9:.1f} GB/s"


if __name__ == "__main__":
    print(copies())
