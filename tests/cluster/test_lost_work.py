"""What a job that lost more than it can bring back does: it says so and ends, instead of waiting or beginning anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cluster import Zygote, cluster

pytestmark = pytest.mark.cluster

SMALL = "--model=tests.cluster.models"


@pytest.mark.long
def test_a_ps_that_does_not_return_with_the_coordinator_ends_the_job(zygote: Zygote, tmp_path: Path) -> None:
    folder = {"checkpoint_dir": tmp_path / "c", "save_steps": 50}
    with cluster(zygote, tmp_path, ps=2, train_steps=100_000, ps_timeout_s=6, lease_s=3, **folder) as job:
        job.start_worker(0, SMALL)
        job.wait_for_step(60)
        for ps in job.ps:
            ps.kill()
        again = job.start_again(job.ps[0])
        codes = job.wait_all()
        assert (codes[again.name], codes["worker-0"]) == (1, 1)
        assert "ps 1 did not return within 6 s (ps_timeout_s)" in again.wait_for(" error ")


@pytest.mark.long
def test_a_ps_that_is_lost_without_a_copy_ends_the_job(zygote: Zygote, tmp_path: Path) -> None:
    with cluster(zygote, tmp_path, ps=2, train_steps=100_000) as job:
        worker = job.start_worker(0, SMALL)
        job.wait_for_step(60)
        job.ps[1].kill()
        again = job.start_again(job.ps[1])
        codes = job.wait_all()
        assert (codes["ps-0"], codes[again.name], codes["worker-0"]) == (1, 1, 1)
        line = worker.wait_for(" error ")
        assert "is lost (ps 1 lost its variables), and there is no copy to bring it back" in line
        assert "--checkpoint-dir" in line and "--start-over" in line
        assert "initialised" in worker.text and worker.text.count("initialised") == 1
