"""The fault kit itself: its gates hold where they say, its faults are facts, and what it reads is what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import inventory
from tests.support.census import take_census
from tests.support.cluster import Cluster, Zygote, cluster
from tests.support.faults import Faults
from tests.support.gates import Gates, write_model

pytestmark = [pytest.mark.cluster, pytest.mark.long]


def received(job: Cluster, zygote: Zygote) -> dict[str, int]:
    return {bucket: row["received"] for bucket, row in inventory.of_ps(job, zygote).ledgers.items()}


@pytest.mark.parametrize("mode", [pytest.param("async", marks=pytest.mark.long), "sync"])
def test_gates_hold_where_they_say_and_faults_are_facts(mode: str, zygote: Zygote, tmp_path: Path) -> None:
    gates = Gates(tmp_path / "gates")
    model = write_model(tmp_path, gates.folder)
    with cluster(zygote, tmp_path, mode=mode, ps=2, min_workers=2, lease_s=2) as job:
        faults = Faults(job)
        workers = [job.start_worker(index, f"--model={model}") for index in range(2)]
        for place in ("draw", "compute", "stepped"):
            job.wait_for_step(job.status().global_step + 5)
            gates.close(f"{place}-1")
            gates.wait_at(f"{place}-1", workers[1])
            if mode == "async":
                job.wait_for_step(job.status().global_step + 20)
            before = [received(job, zygote) for _ in range(2)]
            assert (before[0] == before[1]) == (mode == "sync"), "a round waits for all, other steps for nobody"
            gates.open(f"{place}-1")
        for gate in ("apply-head", "tear-head"):
            job.wait_for_step(job.status().global_step + 5)
            gates.close(gate)
            gates.wait_at(gate)
            before = [received(job, zygote) for _ in range(2)]
            assert before[0]["head"] == before[1]["head"], "the update that stands has the lock"
            gates.open(gate)
        job.wait_for_step(job.status().global_step + 5)
        take_census(job, zygote, gates, [0, 1]).check()
        faults.stop(workers[1])
        faults.cont(workers[1])
        faults.kill(workers[1])
        faults.restart(workers[1]).wait_for(" first_step ")
        assert faults.counts == {"stop": 1, "cont": 1, "kill": 1, "restart": 1}
        gates.close("stop")
        assert job.wait_all() == {"ps-0": 0, "ps-1": 0, "worker-0": 0, "worker-1": -9, "worker-1.1": 0}
