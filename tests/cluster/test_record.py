"""Records of real workers under --staleness-lr: from them alone the final parameters can be computed."""

from __future__ import annotations

import math
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from psruntime.observe.records import Record, file_of, read_records, standing
from tests.cluster.record_models import RATE, SLOW, reference
from tests.support.cluster import Zygote, cluster
from tests.support.stock import contents

pytestmark = [pytest.mark.cluster, pytest.mark.optimised]

MODEL = "--model=tests.cluster.record_models"
DECAY, STEPS = 0.1, 400


@pytest.mark.long
def test_the_parameters_are_what_the_record_says_was_applied(zygote: Zygote, tmp_path: Path) -> None:
    """Three workers, of which one is slow and one leaves after SIGTERM: no update is missing, and each was applied with
    the weight of its own staleness."""
    path = str(tmp_path / "record.jsonl")
    settings = {"checkpoint_dir": tmp_path / "checkpoints", "staleness_lr": f"exponential:{DECAY}"}
    with cluster(zygote, tmp_path, min_workers=3, train_steps=STEPS, **settings) as job:
        workers = [job.start_worker(index, MODEL, f"--record={path}") for index in range(3)]
        job.wait_for_step(STEPS // 4)
        workers[1].signal(signal.SIGTERM)
        assert workers[1].wait() == 128 + signal.SIGTERM
        assert set(job.wait_all().values()) == {0, 143}
        ledger, accounts = job.ps[0].wait_for(" ledger "), job.ps[0].wait_for(" accounts ")
    assert "balanced=True" in ledger and "balanced=True" in accounts
    records = read_records(path)
    accepted = dict(re.findall(r"worker (\d): (\d+) to", ledger))
    for worker in range(3):
        own = read_records(file_of(path, worker))
        assert len(own) == int(accepted[str(worker)]) > 0, "no update is missing after the end or SIGTERM"
        assert [r.push for r in own] == list(range(1, len(own) + 1))
    assert {(r.outcome, r.applied, r.mode, r.bound) for r in records} == {("applied", 1, "async", None)}
    assert max(r.global_step for r in records) >= STEPS
    check_weights(records)
    assert f" down_weighted={sum(lowered(r) for r in records)} " in ledger
    saved = contents(str(next((tmp_path / "checkpoints").glob(f"model.ckpt-{len(records)}.index")).with_suffix("")))
    expected = reference([(r.push, r.worker, r.weight or 0.0) for r in records])
    np.testing.assert_allclose(saved["w"], expected, rtol=1e-6, atol=1e-6)
    unweighted = reference([(r.push, r.worker, 1.0) for r in records])
    assert np.abs(saved["w"] - unweighted).max() > 0.01, "the weights made no difference: nothing was shown"


@pytest.mark.long
def test_what_a_rollback_undid_does_not_stand(zygote: Zygote, tmp_path: Path) -> None:
    """ps 0 is killed, and all goes back to a checkpoint.  The view has number 1 again, and yet is another one."""
    path = str(tmp_path / "record.jsonl")
    settings = {"checkpoint_dir": tmp_path / "checkpoints", "save_steps": 50, "staleness_lr": "inverse"}
    with cluster(zygote, tmp_path, min_workers=2, train_steps=600, **settings) as job:
        workers = [job.start_worker(index, MODEL, f"--record={path}") for index in range(2)]
        job.wait_for_step(230)
        job.ps[0].kill()
        again = job.start_again(job.ps[0])
        assert [worker.wait(120) for worker in workers] == [0, 0]
        assert again.wait() == 0
    records = read_records(path)
    stands = standing(records)
    assert len({r.view for r in records}) == 2
    newest = max(int(re.findall(r"-(\d+)", p.name)[0]) for p in (tmp_path / "checkpoints").glob("model.ckpt-*.index"))
    wrong = abs(len(stands) - newest)
    assert wrong <= 1 < len(records) - len(stands), "at most one of the other worker's is on the wrong side"
    saved = contents(str(tmp_path / "checkpoints" / f"model.ckpt-{newest}"))["w"]
    expected = reference([(r.push, r.worker, r.weight or 0.0) for r in stands])
    np.testing.assert_allclose(saved, expected, rtol=1e-6, atol=1e-6 + wrong * RATE)


def check_weights(records: list[Record]) -> None:
    """Each is that of its staleness, which varies."""
    for each in records:
        assert each.staleness is not None
        assert each.weight == pytest.approx(math.exp(-DECAY * each.staleness), rel=1e-6)
    of_slow = [r.staleness or 0 for r in records if r.worker == SLOW]
    of_fast = [r.staleness or 0 for r in records if r.worker != SLOW]
    assert np.median(of_slow) >= 5 > np.median(of_fast)
    assert len({r.staleness for r in records}) >= 4


def lowered(record: Record) -> bool:
    return record.weight is not None and record.weight < 1
