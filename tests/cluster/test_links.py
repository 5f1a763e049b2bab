"""Links to the coordinator that delay, cut and drop: nobody is lost who need not be, and no update either."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from psruntime.core.members.view import Phase
from tests.support.census import take_census
from tests.support.cluster import Cluster, Zygote, cluster
from tests.support.gates import Gates, write_model
from tests.support.polling import poll_until
from tests.support.proxy import Proxy

pytestmark = pytest.mark.cluster

LEASE_S = 3.0
BOUND = 2
CUTS = 8
SETTINGS: dict[str, dict[str, Any]] = {"bounded": {"mode": "bounded", "bound": BOUND}, "sync": {"mode": "sync"}}


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    proxy = Proxy(seed=1)
    yield proxy
    proxy.close()


def lost(job: Cluster) -> list[str]:
    return re.findall(r'member_lost member="(.*?)"', job.ps[0].text)


def go_on(job: Cluster, steps: int) -> None:
    job.wait_for_step(job.status().global_step + steps)


@pytest.mark.long
@pytest.mark.parametrize("mode", SETTINGS)
def test_a_job_outlasts_bad_links(mode: str, zygote: Zygote, tmp_path: Path, proxy: Proxy) -> None:
    gates = Gates(tmp_path / "gates")
    model = write_model(tmp_path, gates.folder)
    settings = {"ps": 2, "min_workers": 2, "lease_s": LEASE_S, **SETTINGS[mode]}
    with cluster(zygote, tmp_path, reach=proxy.lead_to, **settings) as job:
        workers = [job.start_worker(index, f"--model={model}") for index in range(2)]
        job.wait_for_step(10)
        assert not lost(job)

        proxy.delay(0.3)
        poll_until(lambda: proxy.counts["overtook"] >= 10 and proxy.counts["delayed"] >= 30, 60, "messages overtake")
        go_on(job, 5)
        proxy.delay(0.0)
        assert not lost(job), "who is slow is not lost"

        for _ in range(CUTS):
            proxy.cut()
            go_on(job, 3)
        assert proxy.counts["cut"] >= CUTS, proxy.counts
        assert not lost(job), "who calls again is not lost"
        assert job.status().view.number == 1

        proxy.drop()
        poll_until(lambda: {"ps 1", "worker 0", "worker 1"} <= set(lost(job)), 60, "that the leases end")
        assert job.status().phase is Phase.FORMING and proxy.counts["dropped"] > 0
        proxy.heal()
        poll_until(lambda: job.status().phase is Phase.TRAINING, 60, "a new view")
        for proc in (job.ps[1], *workers):
            proc.wait_for(" rejoining ")
        go_on(job, 10)
        take_census(job, zygote, gates, [0, 1]).check()
        assert job.status().steps_lost == 0, "all ps still held their variables"
        if mode == "bounded":
            assert job.status().max_lead <= BOUND
        gates.close("stop")
        assert set(job.wait_all().values()) == {0}
        assert all("balanced=True" in ps.wait_for(" ledger ") for ps in job.ps)
