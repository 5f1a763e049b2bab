"""Reads the ledgers on the ps of a running job, in a process of its own: this one keeps out of TensorFlow."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from tests.support.cluster import ROOT, Cluster

_READ = """
import json, sys
from tests.support.inventory import spec_of
from psruntime.core.plan.plan import make_plan
from psruntime.graph.base import environment
environment.prepare(10.0)
from psruntime.graph.session.ps_state import LedgerReader
from psruntime.core.accounting.accounts import APPLIED, CAUSES, MAX_STALENESS, RECEIVED
order = json.loads(sys.stdin.read())
specs = [spec_of(**spec) for spec in order["specs"]]
plan = make_plan(specs, len(order["addresses"]), *order["sizes"])
found = {}
for index, address in enumerate(order["addresses"]):
    for name, row in LedgerReader("grpc://" + address, index, plan, order["max_workers"]).ledgers().items():
        found[name] = {"received": int(row[RECEIVED]), "applied": int(row[APPLIED]),
                       "max_staleness": int(row[MAX_STALENESS]), "dropped": {c: int(row[i]) for c, i in CAUSES.items()}}
print(json.dumps(found))
"""


def read_ledgers(job: Cluster) -> dict[str, Any]:
    """Bucket name -> {received, applied, max_staleness, dropped: {cause: count}}."""
    order = {
        "addresses": [entry.address for entry in job.status().view.ps],
        "specs": [asdict(spec) for spec in job.client.get_model() or ()],
        "sizes": job.settings.plan_sizes,
        "max_workers": job.settings.max_workers,
    }
    done = subprocess.run(
        [sys.executable, "-c", _READ], input=json.dumps(order), capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
