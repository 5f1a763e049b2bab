"""How many tensors travel in a step: the receives in its graphs, as TensorFlow partitioned and ran them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf1

from benchmarks.processes import lines

AT = 20  # the run that is looked at


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


class Receives(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Prints `receives {...}` of one run, early."""

    def __init__(self) -> None:
        self._runs = 0

    def before_run(self, run_context: Any) -> Any:  # noqa: ARG002
        self._runs += 1
        if self._runs == AT:
            return tf1.train.SessionRunArgs(None, options=tf1.RunOptions(output_partition_graphs=True))
        return None

    def after_run(self, run_context: Any, run_values: Any) -> None:  # noqa: ARG002
        graphs = run_values.run_metadata.partition_graphs
        if graphs:
            print(f"receives {json.dumps(receives(graphs))}", flush=True)


def receives_of(log: Path) -> dict[str, int]:
    """What a worker printed; empty if it has not yet."""
    found = [line.partition(" ")[2] for line in lines(log) if line.startswith("receives ")]
    told: dict[str, int] = json.loads(found[0]) if found else {}
    return told
