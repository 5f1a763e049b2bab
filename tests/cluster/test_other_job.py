"""A job is started where another one was: what still runs of that one has no part in it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from psruntime.core.members.view import Phase
from tests.support.cluster import Proc, Zygote, cluster
from tests.support.polling import poll_until

pytestmark = pytest.mark.cluster

SMALL = "--model=tests.cluster.models"


def refusal(proc: Proc) -> str:
    """What a process says at its end; one line, without a traceback."""
    assert proc.wait() == 2
    assert "Traceback" not in proc.text
    (error,) = [line for line in proc.text.splitlines() if " error " in line]
    return error


@pytest.mark.long
def test_a_ps_and_a_worker_of_the_job_before_are_refused_by_name(zygote: Zygote, tmp_path: Path) -> None:
    with cluster(zygote, tmp_path, ps=2, train_steps=1_000_000, job_id="winter") as job:
        worker = job.start_worker(0, SMALL)
        job.wait_for_step(20)
        assert "job id=winter mode=async" in worker.text
        job.ps[0].kill()
        flags = ["--job-id=spring", "--ps=2", "--train-steps=100", "--lease=3", "--linger=0"]
        first = job.start_ps(0, *flags)
        for proc, name in ((job.ps[1], "ps 1"), (worker, "worker 0")):
            said = refusal(proc)
            assert f"{name} at 127.0.0.1:" in said
            assert f"still serves job winter, this is the coordinator of job spring: start {name} anew" in said
        for name in ("ps 1", "worker 0"):
            first.wait_for(f'refused member="{name}"')

        def reason() -> bool:
            status, settings = job.client.get_status()
            return settings.job_id == "spring" and "waiting for ps 1 of 2; ps 1 at 127.0.0.1:" in status.reason

        poll_until(reason, 30, "the status names the ps")
        assert job.status().phase is Phase.FORMING
        ours = [first, job.start_ps(1), job.start_worker(0, SMALL)]
        assert [proc.wait() for proc in ours] == [0, 0, 0]
        assert "restored" not in ours[2].text and "adopted" not in ours[2].text
        codes = job.wait_all()
        assert codes["ps-0"] == -signal.SIGKILL
