"""A trace of a real job: who waits for whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from psruntime.observe.meter import COMPUTE, PULL, ROUND
from psruntime.observe.traces import APPLY, MUTEX, STEP, TRANSFER, read_trace
from psruntime.study.trace_report import report_of
from tests.support.cluster import Zygote, cluster

pytestmark = pytest.mark.cluster

WORKERS, SLOW = (0, 1, 2), 2
FIRST, LAST = 20, 30
PAUSE_S = 0.1  # of the slow worker in each step, without using a processor

MODEL = f"""
from tests.cluster import models

input_fn = models.input_fn

def model_fn(features, labels, mode):
    return models.model_with({PAUSE_S}, features, labels)
"""


@pytest.mark.long
def test_a_trace_of_a_sync_job_shows_that_the_others_wait_for_the_slow_worker(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(MODEL)
    job = {"ps": 2, "min_workers": len(WORKERS), "mode": "sync", "train_steps": LAST + 5}
    with cluster(zygote, tmp_path, **job, trace_steps=f"{FIRST}:{LAST}", checkpoint_dir=str(tmp_path / "c")) as started:
        for worker in WORKERS:
            started.start_worker(worker, f"--model={'slow' if worker == SLOW else 'tests.cluster.models'}")
        assert set(started.wait_all().values()) == {0}
    trace = read_trace(str(tmp_path / "c" / "trace" / f"steps-{FIRST}-{LAST}.json.gz"))
    report = report_of(trace.spans)
    assert [(time.worker, time.steps) for time in report.workers] == [(worker, LAST - FIRST) for worker in WORKERS]
    assert report.waited_for and report.waited_for.worker == SLOW
    for time in report.workers:
        waited, computed = time.phases[ROUND], time.phases[PULL] + time.phases[COMPUTE]
        assert computed >= PAUSE_S > waited if time.worker == SLOW else waited >= PAUSE_S / 2 > computed
    kinds = {(span.task, span.kind) for span in trace.spans}
    assert kinds >= {(f"ps {ps}", kind) for ps in (0, 1) for kind in (APPLY, MUTEX, TRANSFER)}
    slack_s = trace.off_by_s + 0.01
    for worker in WORKERS:  # what the ps did for a worker lies within its steps, on one clock
        of_worker = [span for span in trace.spans if span.worker == worker]
        steps = [span for span in of_worker if span.kind == STEP]
        begin_s, end_s = steps[0].begin_s - slack_s, steps[-1].end_s + slack_s
        assert all(begin_s <= s.begin_s <= s.end_s <= end_s for s in of_worker if s.task.startswith("ps"))
