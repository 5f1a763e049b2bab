"""--warm-start in a job of processes: who is not the chief finds what the chief began with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from tests.cluster.test_faults import end
from tests.support.cluster import Zygote, cluster
from tests.support.stock import contents

pytestmark = pytest.mark.cluster
DIGITS = "--model=psruntime.examples.digits"


@pytest.mark.long
def test_a_job_begins_with_the_variables_of_another(zygote: Zygote, tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    first = {"ps": 1, "train_steps": 30, "checkpoint_dir": tmp_path / "first"}
    with cluster(zygote, tmp_path / "a", **first) as job:
        job.start_worker(0, DIGITS)
        assert set(job.wait_all(120).values()) == {0}
    trained = contents(str(tf1.train.latest_checkpoint(str(tmp_path / "first"))))
    second = {"ps": 2, "min_workers": 2, "train_steps": 10, "checkpoint_dir": tmp_path / "second"}
    with cluster(zygote, tmp_path / "b", warm_start=tmp_path / "first", warm_start_vars="hidden/", **second) as job:
        workers = [job.start_worker(index, DIGITS) for index in range(2)]
        assert set(job.wait_all(120).values()) == {0}
    (said,) = [line for worker in workers for line in worker.text.splitlines() if " warm_started " in line]
    assert 'variables=2 names="hidden/bias, hidden/kernel" left="logits/bias, logits/kernel"' in said
    begun = contents(str(tmp_path / "second" / "model.ckpt-0"))
    for name in ("hidden/kernel", "hidden/bias"):
        np.testing.assert_array_equal(begun[name], trained[name])
    assert np.any(begun["logits/kernel"] != trained["logits/kernel"]) and begun["global_step"] == 0
    with cluster(zygote, tmp_path / "c", checkpoint_dir=tmp_path / "third", warm_start=tmp_path / "nothing") as job:
        worker = job.start_worker(0, DIGITS)
        assert worker.wait() == 2
        assert "nothing is no checkpoint, nor a folder that has one" in worker.wait_for(" error ")
        assert not (tmp_path / "third").exists()
        end(job)
