"""How many tensors travel in a step: the receives in its graphs, as TensorFlow partitioned and ran them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any


def receives(partition_graphs: Iterable[Any]) -> Counter[str]:
    """Of a RunMetadata's partition graphs: "ps to worker" and the like -> receives from another process."""
    nodes = received(partition_graphs)
    return Counter(f"{_task(node, 'send_device')[0]} to {_task(node, 'recv_device')[0]}" for node in nodes)


def received(partition_graphs: Iterable[Any]) -> Iterator[Any]:
    """Their nodes that receive from another process."""
    for graph in partition_graphs:
        for node in graph.node:
            is_receive = node.op in ("_Recv", "_HostRecv") and not node.attr["client_terminated"].b
            if is_receive and _task(node, "send_device") != _task(node, "recv_device"):
                yield node


def _task(node: Any, end: str) -> tuple[str, str]:
    """(job, task) of /job:ps/replica:0/task:1/device:CPU:0, of which some names lack the first slash."""
    parts = dict(part.split(":", 1) for part in node.attr[end].s.decode().split("/") if ":" in part)
    return parts["job"], parts["task"]
