"""Async training with real processes: it trains, workers come and go, the ledgers balance."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from psruntime.core.members.job_status import JobStatus
from psruntime.core.members.view import Phase
from tests.support.cluster import Zygote, cluster
from tests.support.ledgers import read_ledgers
from tests.support.polling import poll_until

pytestmark = pytest.mark.cluster

SMALL = "--model=tests.cluster.models"
WIDE = "--model=tests.cluster.wide_models"
WIDE_BYTES = 4 * (4 * 2500 + 2500)  # of its variables, each of which is pulled and pushed in a step


@pytest.mark.long
def test_digits_with_two_ps_and_two_workers(zygote: Zygote, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    settings = {"checkpoint_dir": checkpoints, "save_steps": 200, "keep": 9, "keep_best": "accuracy"}
    with cluster(zygote, tmp_path, ps=2, min_workers=2, train_steps=600, **settings) as job:
        first, second = job.start_worker(0), job.start_worker(1)
        assert job.wait_all() == {"ps-0": 0, "ps-1": 0, "worker-0": 0, "worker-1": 0}
        said = first.wait_for("held out") if "held out" in first.text else second.wait_for("held out")
        assert float(said.rsplit("accuracy ", 1)[1]) > 0.9
        for ps in job.ps:
            assert "balanced=True" in ps.wait_for(" ledger ")
        assert {path.name for path in checkpoints.glob("*-0.index")} == {"model.ckpt-0.index"}
        log = first.text + second.text
        assert "checkpoint path=" in log and "sharded=yes" in log and "failed" not in log
        best = json.loads((checkpoints / "best" / "best.json").read_text())
        assert best["metric"] == "accuracy" and best["value"] > 0.9
        assert (checkpoints / "best" / f"{best['checkpoint']}.index").exists()


def step_traffic_is_the_models(status: JobStatus) -> bool:
    """Whether worker 0 receives and sends what the model holds in a step, and some more, and the ps have it all."""
    traffic = next((m.worker_traffic for m in status.members if m.worker_traffic), None)
    ps = [m.ps_traffic for m in status.members if m.ps_traffic]
    if traffic is None or len(ps) < 2 or None in [each.share for each in ps]:
        return False
    assert sum(each.share or 0 for each in ps) == pytest.approx(1)
    assert all(each.sent_per_s > 0 and each.received_per_s > 0 for each in ps)
    moved = (traffic.received_per_step, traffic.sent_per_step)
    return all(WIDE_BYTES <= bytes_per_step <= 1.5 * WIDE_BYTES for bytes_per_step in moved)


@pytest.mark.long
def test_workers_join_leave_and_are_lost_while_the_others_go_on(zygote: Zygote, tmp_path: Path) -> None:
    with cluster(zygote, tmp_path, ps=2, train_steps=1_000_000, lease_s=3) as job:
        stayer = job.start_worker(0, WIDE)
        job.wait_for_step(50)
        poll_until(lambda: step_traffic_is_the_models(job.status()), 60, "the measured traffic of a step")
        joiner = job.start_worker(7, WIDE)
        poll_until(lambda: job.worker_pushes().get(7, 0) > 20, 30, "pushes of worker 7")
        joiner.signal(signal.SIGTERM)
        assert joiner.wait() == 128 + signal.SIGTERM
        assert 7 not in job.worker_pushes()
        job.wait_for_step(job.status().global_step + 50)

        victim = job.start_worker(3, WIDE)
        poll_until(lambda: job.worker_pushes().get(3, 0) > 20, 30, "pushes of worker 3")
        victim.kill()
        successor = job.start_worker(3, WIDE)  # before the lease of the dead one has ended
        successor.wait_for(" first_step ")  # the status may still show the dead one's pushes
        job.wait_for_step(job.status().global_step + 50)
        assert job.status().phase is Phase.TRAINING
        assert stayer.code is None and successor.code is None

        impostor = job.start_worker(3, WIDE)
        assert impostor.wait() == 2
        assert "worker 3 is held by a live process" in impostor.text
        for proc in reversed(job.procs):
            if proc.code is None:
                proc.signal(signal.SIGTERM)
        assert {code for name, code in job.wait_all().items() if name.startswith("ps")} == {143}


@pytest.mark.long
def test_no_applied_update_is_staler_than_allowed(zygote: Zygote, tmp_path: Path) -> None:
    with cluster(zygote, tmp_path, ps=2, min_workers=4, train_steps=1_000_000, max_staleness=2, stop_grace_s=0) as job:
        workers = [job.start_worker(index, SMALL) for index in range(4)]
        job.wait_for_step(400)
        for worker in workers:
            worker.signal(signal.SIGTERM)
        assert [worker.wait() for worker in workers] == [143] * 4
        ledgers = read_ledgers(job)
        assert set(ledgers) == {"kernel", "head", "global_step"}
        for ledger in ledgers.values():
            assert ledger["received"] == ledger["applied"] + sum(ledger["dropped"].values())
            assert ledger["applied"] > 300 and ledger["max_staleness"] <= 2
        assert sum(ledger["dropped"]["stale"] for ledger in ledgers.values()) > 0, "nobody was ever too stale"
        for ps in job.ps:
            ps.signal(signal.SIGTERM)
        job.wait_all()
