"""A job with --schedule: each stage begins at its global step, and what a loss undoes is done in its stage again."""

from __future__ import annotations

from pathlib import Path

import pytest

from psruntime.core.members.view import Phase
from psruntime.observe.records import Record, read_records, standing
from psruntime.observe.rounds_log import rounds_of
from tests.cluster.test_rounds import replay, start, write_model
from tests.support.checkpoint_list import keep_from
from tests.support.cluster import Zygote, cluster
from tests.support.polling import poll_until

pytestmark = pytest.mark.cluster

WORKERS = 3
ASYNC_ENDS, BOUNDED_ENDS, STEPS = 100, 250, 300
SCHEDULE = f"async:{ASYNC_ENDS}, bounded 1:{BOUNDED_ENDS - ASYNC_ENDS}, sync"
LATE = 20  # updates that end behind their stage: what three workers have under way, and the way of the word to hold


@pytest.mark.long
def test_each_stage_is_in_its_place(zygote: Zygote, tmp_path: Path) -> None:
    """Three stages with the loss of ps 0 in the second; the rounds at the end are those that a replay repeats."""
    model = write_model(tmp_path, "scheduled", optimizer="adam", table=True)
    checkpoints, log, record = tmp_path / "checkpoints", tmp_path / "rounds.jsonl", tmp_path / "record.jsonl"
    with cluster(
        zygote, tmp_path, ps=2, min_workers=WORKERS, schedule=SCHEDULE, train_steps=STEPS, save_steps=20, keep=1000,
        checkpoint_dir=checkpoints, rounds_log=log, lease_s=3,
    ) as job:  # fmt: skip
        for index in range(WORKERS):
            start(job, index, model, f"--record={record}")
        poll_until(lambda: job.status().steering.settings.mode == "bounded", 60, "the second stage")
        status = job.status()
        assert status.steering.settings.bound == 1 and status.steering.settings.automatic
        job.wait_for_step(ASYNC_ENDS + 30)
        job.ps[0].kill()
        job.start_again(job.ps[0]).wait_for("READY coordinator")
        job.wait_for_phase(Phase.TRAINING)
        codes = job.wait_all()
        assert codes.pop("ps-0") in (-9, 137) and set(codes.values()) == {0}
        for index in range(2):
            assert "balanced=True" in job.latest("ps", index).wait_for(" ledger ")
        assert "Traceback" not in "".join(proc.text for proc in job.procs)
    check_stages(standing(read_records(str(record))))
    rounds = rounds_of(log)
    first, last = rounds[0]["round"], rounds[-1]["round"]
    assert BOUNDED_ENDS < first <= BOUNDED_ENDS + LATE and last == STEPS
    keep_from(checkpoints, first - 1)
    outcome = replay(zygote, tmp_path, model)
    assert outcome["bits_differ"] == {}


def check_stages(records: list[Record]) -> None:
    """By the records that stand: no update in a mode before its stage, but what each worker repeated that the loss had
    interrupted, and few behind it."""
    for mode, begins, ends in (
        ("async", 0, ASYNC_ENDS),
        ("bounded", ASYNC_ENDS, BOUNDED_ENDS),
        ("sync", BOUNDED_ENDS, STEPS),
    ):
        steps = [record.global_step for record in records if record.mode == mode]
        early = [step for step in steps if step <= begins]
        assert len(early) <= WORKERS * (mode != "sync") and max(steps) <= ends + LATE, (mode, early, max(steps))
        assert len(steps) >= (ends - begins) // 2, mode
    assert {record.bound for record in records if record.mode == "bounded"} == {1}
