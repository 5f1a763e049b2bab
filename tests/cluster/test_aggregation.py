"""What all workers make of variables with an aggregation is in the checkpoint, in each mode and when one is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psruntime import tf1
from psruntime.observe.rounds_log import records_of
from tests.cluster.test_control import asked, step_in  # noqa: F401 - a fixture
from tests.cluster.test_stopping import NEVER
from tests.support.cluster import Zygote, cluster

pytestmark = [pytest.mark.cluster, pytest.mark.optimised]

SIZE = 4  # examples of a batch


@pytest.mark.long
def test_rounds_then_steps_have_what_all_workers_made(zygote: Zygote, tmp_path: Path, asked: Any) -> None:  # noqa: F811
    """The chief is killed in mode sync, and another worker comes; then the mode changes, and the job drains."""
    checkpoints, log = tmp_path / "checkpoints", tmp_path / "rounds.jsonl"
    with cluster(
        zygote, tmp_path, mode="sync", ps=2, min_workers=2, train_steps=NEVER, save_steps=NEVER, lease_s=3,
        checkpoint_dir=checkpoints, rounds_log=log,
    ) as job:  # fmt: skip
        flags = "--model=tests.cluster.aggregated_models", f"--batch-size={SIZE}"
        chief = job.start_worker(0, *flags)
        chief.wait_for(" joined ")
        assert "variables=of_each " in job.start_worker(1, *flags).wait_for(" own_copies ")
        job.wait_for_step(20)
        job.ps[0].wait_for(" chief worker=0")
        chief.kill()
        job.wait_for_step(job.status().global_step + 20)
        job.start_worker(2, *flags).wait_for(" first_step ")
        job.wait_for_step(job.status().global_step + 20)
        ask = asked(job)
        code, out, err = ask("mode", "async")
        assert code == 0, err
        switched = step_in(out, "mode async")
        job.wait_for_step(switched + 40)
        assert ask("drain")[0] == 0
        assert {proc.wait() for proc in [job.latest("worker", 1), job.latest("worker", 2), *job.ps]} == {0}
        assert all("balanced=True" in ps.wait_for(" ledger ") for ps in job.ps)
    reader = tf1.train.load_checkpoint(tf1.train.latest_checkpoint(str(checkpoints)))
    saved = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    rounds = [record["parts"] for record in records_of(log) if record["record"] == "round"]
    assert len(rounds) == switched
    parts, steps = [part["worker"] for parts in rounds for part in parts], int(saved["global_step"]) - switched
    assert saved["pushes"] == len(parts) + steps
    assert saved["examples"].sum() == SIZE * saved["pushes"]
    of_rounds = SIZE * np.bincount(parts, minlength=3)
    assert saved["examples"][0] == of_rounds[0] > 0 and (saved["examples"][1:] > of_rounds[1:]).all()
    assert switched - 2 <= saved["of_chief"] < switched + steps, (
        "that of the round in which the chief was lost may lack"
    )
    mean = sum(np.mean([part["worker"] for part in parts]) for parts in rounds)
    mean += np.dot((saved["examples"] - of_rounds) / SIZE, [0, 1, 2])
    assert saved["mean"] == pytest.approx(mean, rel=1e-5)
