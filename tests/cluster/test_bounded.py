"""Bounded mode with real processes: nobody gets further ahead than the bound, nothing staler than follows from it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from psruntime.core.members.job_status import JobStatus
from tests.support.cluster import Cluster, Proc, Zygote, cluster
from tests.support.polling import poll_until

pytestmark = pytest.mark.cluster

FAST = "--model=tests.cluster.models"
SLOW = "--model=tests.cluster.slow_models"
BOUND = 2
LEASE_S = 6.0
PIPELINE = 2
STALENESS = (2 * BOUND + 1) * (3 - 1) + 2 * (PIPELINE - 1)  # of three workers


def stop(job: Cluster) -> None:
    for proc in reversed(job.procs):
        if proc.code is None:
            proc.signal(signal.SIGTERM)
    job.wait_all()


def max_staleness(job: Cluster) -> int:
    """The largest of an applied update, as the ps have counted it."""
    return max(m.ps_stats.max_staleness for m in job.status().members if m.ps_stats)


def leads(status: JobStatus) -> list[int]:
    """What the workers say of themselves."""
    return [m.worker_stats.max_lead for m in status.members if m.worker_stats]


@contextmanager
def stalled(proc: Proc) -> Iterator[None]:
    """The process stands still, for less than its lease: it is slow, not lost."""
    proc.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        proc.signal(signal.SIGCONT)


def waiting(job: Cluster) -> list[str]:
    return [m.worker_stats.waiting for m in job.status().members if m.worker_stats]


@pytest.mark.long
def test_leads_and_staleness_stay_within_the_bound_whoever_comes_goes_or_stalls(zygote: Zygote, tmp_path: Path) -> None:
    settings = {
        "mode": "bounded", "bound": BOUND, "pipeline": PIPELINE, "ps": 2, "min_workers": 3, "train_steps": 1_000_000
    }  # fmt: skip
    with cluster(zygote, tmp_path, lease_s=LEASE_S, **settings) as job:
        workers = [job.start_worker(0, FAST), job.start_worker(1, FAST), job.start_worker(2, SLOW)]
        job.wait_for_step(90)
        reason = "3 steps ahead of worker 2, bound 2"
        with stalled(workers[2]):
            poll_until(lambda: waiting(job).count(reason) == 2, 30, "the status says whom both wait for")
        for worker in workers[:2]:
            worker.wait_for(f'waiting reason="{reason}"')
        job.wait_for_step(job.status().global_step + 30)
        poll_until(lambda: leads(job.status()).count(BOUND) >= 2, 30, "both have been at their bound")
        assert 0 < max_staleness(job) <= STALENESS

        late = job.start_worker(5, FAST)
        late.wait_for(" first_step ")
        job.wait_for_step(job.status().global_step + 30)
        late.signal(signal.SIGTERM)
        assert late.wait() == 128 + signal.SIGTERM
        job.wait_for_step(job.status().global_step + 30)

        status = job.status()
        assert status.view.number == 1 and len(leads(status)) == 3, "nobody was lost"
        assert max(leads(status)) == BOUND
        assert status.max_lead <= BOUND
        assert max_staleness(job) <= STALENESS + 2 * BOUND + 1, "four workers were live for a while"
        stop(job)


@pytest.mark.long
def test_the_same_without_a_bound_exceeds_both(zygote: Zygote, tmp_path: Path) -> None:
    with cluster(zygote, tmp_path, lease_s=LEASE_S, mode="async", ps=2, min_workers=3, train_steps=1_000_000) as job:
        workers = [job.start_worker(0, FAST), job.start_worker(1, FAST), job.start_worker(2, SLOW)]
        job.wait_for_step(90)

        def exceeds() -> bool:
            """Once the worker was stalled between a pull and its push, where it is most of the time."""
            with stalled(workers[2]):
                job.wait_for_step(job.status().global_step + 3 * STALENESS)
            job.wait_for_step(job.status().global_step + 1)
            return max_staleness(job) > STALENESS

        poll_until(exceeds, 60, "an update that is too stale for the bound")
        poll_until(lambda: job.status().max_lead > BOUND, 30, "a lead over the bound")
        stop(job)
