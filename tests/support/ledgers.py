"""Reads the ledgers on the ps of a running job, in a process of its own: this one keeps out of TensorFlow."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from psruntime.core.plan import Plan
from tests.support.cluster import ROOT

_READ = """
import json, sys
from psruntime.core.plan import VariableSpec, make_plan
from psruntime.graph import environment
environment.prepare(10.0)
from psruntime.graph.ps_state import LedgerReader
from psruntime.core.ledger import APPLIED, CAUSES, MAX_STALENESS, RECEIVED
order = json.loads(sys.stdin.read())
specs = [VariableSpec(s["name"], tuple(s["shape"]), s["dtype"], s["sparse"]) for s in order["specs"]]
plan = make_plan(specs, len(order["addresses"]), order["slice_bytes"])
found = {}
for index, address in enumerate(order["addresses"]):
    for name, row in LedgerReader("grpc://" + address, index, plan, order["max_workers"]).ledgers().items():
        found[name] = {"received": int(row[RECEIVED]), "applied": int(row[APPLIED]),
                       "max_staleness": int(row[MAX_STALENESS]), "dropped": {c: int(row[i]) for c, i in CAUSES.items()}}
print(json.dumps(found))
"""


def read_ledgers(
    addresses: Sequence[str], plan: Plan, slice_bytes: int = 16 << 20, max_workers: int = 1024
) -> dict[str, Any]:
    """Bucket name -> {received, applied, max_staleness, dropped: {cause: count}}."""
    order = {
        "addresses": list(addresses), "specs": [asdict(spec) for spec in plan.specs],
        "slice_bytes": slice_bytes, "max_workers": max_workers,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", _READ], input=json.dumps(order), capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
