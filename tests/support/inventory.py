"""Reads what the ps of a running job hold, or what a checkpoint holds.

The zygote runs it as a process of its own; its one argument is JSON, either {"ps": [addresses], "only": [indices],
"specs": [variables], "sizes": the job's plan_sizes, "max_workers": n} or {"checkpoint": prefix of its files,
"extremes": bool}.

Prints one line of JSON: of ps {"values": {variable: [entries]}, "ledgers": {bucket: {column: count}}}, of a
checkpoint {"values": {name: [entries, or the least and the largest]}}, every tensor of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from psruntime.core.plan.buckets import DynamicRows, VariableSpec
from tests.support.cluster import Cluster, Zygote

READ_S = 90.0


@dataclass(frozen=True)
class Inventory:
    """values: name -> entries, flat.  ledgers: bucket -> column -> count; of ps only."""

    values: dict[str, list[float]]
    ledgers: dict[str, dict[str, int]]

    @property
    def unbalanced(self) -> dict[str, dict[str, int]]:
        """The ledgers in which an update that came is neither applied, dropped, rolled back nor pending."""
        return {
            bucket: ledger
            for bucket, ledger in self.ledgers.items()
            if ledger["received"] != sum(count for column, count in ledger.items() if column != "received")
        }

    def dropped(self, cause: str) -> int:
        """Updates of single buckets."""
        return sum(ledger[cause] for ledger in self.ledgers.values())


def of_ps(job: Cluster, zygote: Zygote, only: Sequence[int] | None = None) -> Inventory:
    """What the ps of the view hold, or those of `only`.  The view must have been prepared."""
    addresses = [entry.address for entry in job.status().view.ps]
    return of_addresses(job, zygote, addresses, job.client.get_model() or (), range(len(addresses)))


def of_addresses(
    job: Cluster, zygote: Zygote, addresses: Sequence[str], specs: Sequence[VariableSpec], only: Sequence[int]
) -> Inventory:
    """The same without a coordinator."""
    order = {
        "ps": list(addresses), "only": list(only), "specs": [asdict(spec) for spec in specs],
        "sizes": job.settings.plan_sizes, "max_workers": job.settings.max_workers,
    }  # fmt: skip
    return _read(zygote, job.folder, order)


def of_checkpoint(zygote: Zygote, folder: Path, checkpoint: Path) -> Inventory:
    """All that a checkpoint holds; `folder` is for the log of the reader."""
    return _read(zygote, folder, {"checkpoint": str(checkpoint)})


def extremes(zygote: Zygote, folder: Path, checkpoint: Path) -> dict[str, list[float]]:
    """The least and the largest entry of every tensor of a checkpoint, all of which are read."""
    return _read(zygote, folder, {"checkpoint": str(checkpoint), "extremes": True}).values


def newest_checkpoint(folder: Path) -> tuple[Path, int] | None:
    """(prefix of its files, its global step) of the newest one that is listed."""
    try:
        text = (folder / "checkpoint").read_text()
    except FileNotFoundError:
        return None
    name = json.loads(text.splitlines()[0].partition(": ")[2])
    return folder / name, int(name.rpartition("-")[2])


def _read(zygote: Zygote, folder: Path, order: dict[str, Any]) -> Inventory:
    number = len(list(folder.glob("inventory-*.txt")))
    proc = zygote.start("inventory", ["inventory", json.dumps(order)], folder / f"inventory-{number}.txt", [])
    assert proc.wait(READ_S) == 0, proc.text
    found = json.loads(proc.text.splitlines()[-1])
    return Inventory(found["values"], found.get("ledgers", {}))


def main(argv: list[str]) -> int:
    order = json.loads(argv[0])
    found = _checkpoint(order["checkpoint"], order.get("extremes", False)) if "checkpoint" in order else _ps(order)
    print(json.dumps(found))
    return 0


def _checkpoint(path: str, extremes_only: bool) -> dict[str, Any]:
    import tensorflow.compat.v1 as tf1

    reader = tf1.train.load_checkpoint(path)
    values = {name: reader.get_tensor(name).ravel() for name in sorted(reader.get_variable_to_shape_map())}
    if extremes_only:
        return {"values": {name: [float(value.min()), float(value.max())] for name, value in values.items()}}
    return {"values": {name: value.tolist() for name, value in values.items()}}


def spec_of(shape: Sequence[int], dynamic: dict[str, int] | None, **others: Any) -> VariableSpec:
    """From what `asdict` gives."""
    return VariableSpec(shape=tuple(shape), dynamic=DynamicRows(**dynamic) if dynamic else None, **others)


def _ps(order: dict[str, Any]) -> dict[str, Any]:
    import tensorflow.compat.v1 as tf1

    from psruntime.core.accounting import accounts
    from psruntime.core.plan.plan import make_plan
    from psruntime.graph.base.server import ps_device
    from psruntime.graph.buckets import bucket_store
    from psruntime.graph.session.ps_state import LedgerReader
    from tests.support.by_hand import places

    specs = [spec_of(**spec) for spec in order["specs"]]
    plan = make_plan(specs, len(order["ps"]), *order["sizes"])
    columns = {"received": accounts.RECEIVED, "applied": accounts.APPLIED, "rolled_back": accounts.ROLLED_BACK}
    columns |= {"pending": accounts.PENDING, **accounts.CAUSES}
    found: dict[str, dict[int, float]] = {}
    ledgers: dict[str, dict[str, int]] = {}
    for index in order["only"]:
        target = f"grpc://{order['ps'][index]}"
        for name, row in LedgerReader(target, index, plan, order["max_workers"]).ledgers().items():
            ledgers[name] = {column: int(row[place]) for column, place in columns.items()}
        with tf1.Graph().as_default() as graph, tf1.device(ps_device(index)):
            sections = bucket_store.sections_on(plan, index, order["max_workers"])
            stores = [store for section in sections for store in section.stores]
            masters = [store.master.read_value() for store in stores]
        with tf1.Session(target, graph=graph) as session:
            for bucket, value in zip([store.bucket for store in stores], session.run(masters), strict=True):
                entries = value.ravel().tolist()
                for piece in bucket.pieces:
                    own = entries[piece.offset : piece.offset + piece.size]
                    found.setdefault(piece.variable, {}).update(zip(places(bucket, piece).tolist(), own, strict=True))
    values = {name: [entries[place] for place in sorted(entries)] for name, entries in found.items()}
    return {"values": values, "ledgers": ledgers}
