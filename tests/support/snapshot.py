"""All variables of a running job as they are now, on its ps and on its workers, by TensorFlow's names.

The zygote runs it as a process of its own; its one argument is JSON, {"ps": [addresses], "workers": {index: [address,
[files, each with what `handles_of` gives]]}}.  Prints one line of JSON, a Snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from psruntime.core.accounting.accounts import LEDGER_SIZE
from tests.support.cluster import Cluster, Zygote

READ_S = 180.0
LEDGER, MASTER = "psruntime/ledger/", "psruntime/master/"
SLOTS = ("/Adam", "/Adam_1", "/Adagrad", "_power")
Values = dict[str, list[float]]  # name -> entries, flat


@dataclass(frozen=True)
class Snapshot:
    """Those that have a value.  ps: of all of them.  where: name -> index of its ps.  workers: by index."""

    ps: Values
    where: dict[str, int]
    workers: dict[int, Values]


def take_snapshot(job: Cluster, zygote: Zygote, graphs: Mapping[int, Sequence[Path]]) -> Snapshot:
    """While nothing is under way.  graphs: worker index -> files with the variables of its graphs."""
    status = job.status()
    addresses = {m.index: m.address for m in status.members if m.worker_stats}
    workers = {index: [addresses[index], [str(path) for path in paths]] for index, paths in graphs.items()}
    order = {"ps": [entry.address for entry in status.view.ps], "workers": workers}
    number = len(list(job.folder.glob("snapshot-*.txt")))
    proc = zygote.start("snapshot", ["snapshot", json.dumps(order)], job.folder / f"snapshot-{number}.txt", [])
    assert proc.wait(READ_S) == 0, proc.text
    found = json.loads(proc.text.splitlines()[-1])
    return Snapshot(found["ps"], found["where"], {int(index): each for index, each in found["workers"].items()})


def handles_of(graph: Any) -> dict[str, list[Any]]:
    """The variables of a graph: shared name -> [device, dtype, shape]."""
    return {
        op.get_attr("shared_name").decode() or op.name: [
            op.device, op.get_attr("dtype").name,
            [size.size if size.size >= 0 else None for size in op.get_attr("shape").dim],
        ]
        for op in graph.get_operations()
        if op.type == "VarHandleOp"
    }  # fmt: skip


def main(argv: list[str]) -> int:
    order = json.loads(argv[0])
    found = Snapshot({}, {}, {})
    for index, (address, paths) in order["workers"].items():
        handles = {name: handle for path in paths for name, handle in json.loads(Path(path).read_text()).items()}
        found.workers[int(index)] = {}
        for name, value in _read(int(index), address, order["ps"], handles).items():
            device = handles[name][0]
            if "/job:ps" in device:
                found.ps[name] = value
                found.where[name] = int(device.partition("task:")[2].partition("/")[0])
            else:
                found.workers[int(index)][name] = value
    _name_ledgers_by_bucket(found)
    print(json.dumps(asdict(found)))
    return 0


def _name_ledgers_by_bucket(found: Snapshot) -> None:
    """Puts the rows of each section's ledgers, and of their replicas, under the names of its buckets.  All of a section
    must be the same here: their order is that of the plan, which is not known."""
    masters = {
        name.removeprefix(MASTER): ps
        for name, ps in found.where.items()
        if name.startswith(MASTER) and not name.endswith(SLOTS) and "/replica" not in name
    }
    ledgers = [name for name in found.ps if name.startswith(LEDGER)]
    kinds = {name: name.removeprefix(LEDGER).partition("/replica") for name in ledgers}
    alone = {section.removeprefix("bucket/") for section, _, _ in kinds.values() if section.startswith("bucket/")}
    for ledger, (section, *end) in kinds.items():
        ps, counts = found.where.pop(ledger), found.ps.pop(ledger)
        rows = [counts[begin : begin + LEDGER_SIZE] for begin in range(0, len(counts), LEDGER_SIZE)]
        names = [section.removeprefix("bucket/")]
        if section.startswith("buckets/ps_"):
            of_ps = int(section.removeprefix("buckets/ps_"))
            names = [name for name, its_ps in masters.items() if its_ps == of_ps and name not in alone]
        assert len(names) == len(rows) and all(row == rows[0] for row in rows), f"{ledger}: {names}, {rows}"
        for name in names:
            found.ps[f"{LEDGER}{name}{''.join(end)}"] = rows[0]
            found.where[f"{LEDGER}{name}{''.join(end)}"] = ps


def _read(index: int, address: str, ps: list[str], handles: dict[str, list[Any]]) -> Values:
    """Of those that have a value."""
    import tensorflow.compat.v1 as tf1

    from psruntime.core.members.view import PsEntry, View
    from psruntime.graph.session.session import WorkerServer, open_session

    view = View(1, tuple(PsEntry(i, each, i + 1) for i, each in enumerate(ps)))
    are_there, values = {}, {}
    with tf1.Graph().as_default() as graph:
        for name, (device, dtype, shape) in handles.items():
            with tf1.device(device):
                handle = tf1.raw_ops.VarHandleOp(dtype=tf1.as_dtype(dtype), shape=shape, shared_name=name)
                are_there[name] = tf1.raw_ops.VarIsInitializedOp(resource=handle)
                values[name] = tf1.raw_ops.ReadVariableOp(resource=handle, dtype=tf1.as_dtype(dtype))
    with open_session(WorkerServer(index, f"grpc://{address}", address), graph, view, runs_once=True) as session:
        there = session.run(are_there)
        read = session.run({name: value for name, value in values.items() if there[name]})
    return {name: value.ravel().tolist() for name, value in read.items()}
