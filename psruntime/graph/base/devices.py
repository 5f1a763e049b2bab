"""Device names of the two jobs."""

from __future__ import annotations


def ps_device(index: int) -> str:
    return f"/job:ps/task:{index}/device:CPU:0"


def worker_device(index: int) -> str:
    return f"/job:worker/task:{index}"


def worker_cpu(index: int) -> str:
    return f"{worker_device(index)}/device:CPU:0"
