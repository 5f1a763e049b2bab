"""How many tensors travel in a step: the receives in its graphs, as TensorFlow partitioned and ran them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any


def receives(partition_graphs: Iterable[Any]) -> Counter[str]:
    """Of a RunMetadata's partition graphs: "ps to worker" and the like -> receives from another process."""
    found: Counter[str] = Counter()
    for graph in partition_graphs:
        for node in graph.node:
            if node.op in ("_Recv", "_HostRecv") and not node.attr["client_terminated"].b:
                sender, receiver = (_task(node.attr[end].s.decode()) for end in ("send_device", "recv_device"))
                if sender != receiver:
                    found[f"{sender[0]} to {receiver[0]}"] += 1
    return found


def _task(device: str) -> tuple[str, str]:
    """(job, task) of /job:ps/replica:0/task:1/device:CPU:0, with which some names lack the slash."""
    parts = dict(part.split(":", 1) for part in device.split("/") if ":" in part)
    return parts["job"], parts["task"]
