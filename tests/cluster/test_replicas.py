"""A ps that is killed comes back from the copy on the next one: fewer than twice as many steps are lost as lie between
two copies, with no checkpoint near."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest

from tests.support.cluster import Zygote, cluster
from tests.support.polling import poll_until

pytestmark = pytest.mark.cluster

EVERY = 20
KILLS = 4
SEED = 11


@pytest.mark.long
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_fewer_steps_are_lost_than_lie_between_three_copies(mode: str, zygote: Zygote, tmp_path: Path) -> None:
    moments = random.Random(SEED)
    settings = {"replicate_every": EVERY, "save_steps": 100_000, "checkpoint_dir": tmp_path / "checkpoints"}
    with cluster(zygote, tmp_path, mode=mode, ps=2, min_workers=2, train_steps=400, **settings) as job:
        workers = [job.start_worker(index, "--model=tests.cluster.slow_models") for index in range(2)]
        for kill in range(1, KILLS + 1):
            job.wait_for_step(job.status().global_step + 2 * EVERY + 10)
            time.sleep(moments.uniform(0, 0.2))  # anywhere in a copy, or between two
            job.ps[1].kill()
            job.ps[1] = job.start_ps(1)
            poll_until(lambda want=kill + 1: job.ps[0].text.count(" prepared view=") == want, 60, "the next view")
        assert job.wait_all() == {proc.name: -9 if proc.code == -9 else 0 for proc in job.procs}
        log = job.ps[0].text
    lost = [int(steps) for steps in re.findall(r" prepared view=\d+ global_step=\d+ steps_lost=(\d+)", log)][1:]
    assert len(lost) == KILLS and 0 < max(lost) < 2 * EVERY, lost
    restored = [re.findall(r" restored .*", worker.text) for worker in workers]
    events = [event for of_worker in restored for event in of_worker]
    assert len(events) == KILLS and all(" replica=" in event for event in events), events
    assert len(re.findall(r" ledger .*balanced=True", log + job.ps[1].text)) == 2
    accounts = re.search(r" accounts .*balanced=True.*", log)
    assert accounts, log
