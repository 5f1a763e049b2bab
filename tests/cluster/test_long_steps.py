"""Steps in which nothing travels for long: they end as they should, and a ps that is lost meanwhile is noticed."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Zygote, cluster
from tests.support.faults import Faults
from tests.support.polling import poll_until

pytestmark = pytest.mark.cluster

LEASE_S = 3.0
NOTICED_S = 5.0  # after the end of the lease; the promise is a second, for a machine with nothing else to do
SILENT_S = 100.0  # gRPC's pings ended a silent connection after 74 s
SETTINGS: dict[str, dict[str, Any]] = {
    "async": {},
    "bounded": {"mode": "bounded", "bound": 1},
    "sync": {"mode": "sync"},
}
SILENT = """
import os
import time
import tensorflow.compat.v1 as tf1
from tests.cluster import models
from tests.cluster.models import input_fn

def look():
    if os.path.exists({closed!r}):
        open({silent!r} + str(os.getpid()), "w").close()
        time.sleep(0.05)
        return True
    return False

def model_fn(features, labels, mode):
    def wait(_):
        closed = tf1.numpy_function(look, [], tf1.bool)
        closed.set_shape([])
        return closed
    with tf1.control_dependencies([features]):
        waited = tf1.while_loop(lambda closed: closed, wait, [tf1.constant(True)]) if mode == "train" else False
    with tf1.control_dependencies([waited] if mode == "train" else []):
        features = tf1.identity(features)
    return models.model_fn(features, labels, mode)
"""


class Silence:
    """The model `silent_model`, whose steps are silent while a file is there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._closed, silent = folder / "closed", folder / "silent-"
        (folder / "silent_model.py").write_text(SILENT.format(closed=str(self._closed), silent=str(silent)))

    @property
    def workers(self) -> int:
        """How many workers are, or were, in a silent step."""
        return len(list(self._folder.glob("silent-*")))

    def begin(self, workers: int) -> None:
        """Until so many workers at least are silent; others may wait for them."""
        self._closed.touch()
        poll_until(lambda: self.workers >= workers, 60, f"{workers} silent workers")

    def end(self) -> None:
        self._closed.unlink()


@pytest.mark.long
@pytest.mark.parametrize("mode", SETTINGS)
def test_a_ps_that_is_paused_in_a_silent_step_is_noticed_at_the_end_of_its_lease(
    mode: str, zygote: Zygote, tmp_path: Path
) -> None:
    silence = Silence(tmp_path)
    folder = {"checkpoint_dir": tmp_path / "c", "save_steps": 20}
    with cluster(
        zygote, tmp_path, ps=2, min_workers=2, train_steps=300, lease_s=LEASE_S, **folder, **SETTINGS[mode]
    ) as job:
        workers = [job.start_worker(index, "--model=silent_model") for index in range(2)]
        job.wait_for_step(50)
        silence.begin(1)
        faults = Faults(job)
        faults.stop(job.ps[1])
        began_s = time.monotonic()
        for worker in workers:
            poll_until(lambda w=worker: "waiting for ps 1" in w.text, LEASE_S + NOTICED_S, f"{worker.name} to notice")  # type: ignore[misc]
            assert "cut_links" in worker.text
        assert time.monotonic() - began_s < LEASE_S + NOTICED_S
        silence.end()
        faults.cont(job.ps[1])
        assert set(job.wait_all().values()) == {0}
        assert "balanced=True" in job.ps[0].text and "balanced=True" in job.ps[1].text


@pytest.mark.long
def test_a_step_may_be_silent_for_long(zygote: Zygote, tmp_path: Path) -> None:
    """In a job of each mode, all at once."""
    silence = Silence(tmp_path)
    with ExitStack() as stack:
        jobs = []
        for mode, settings in SETTINGS.items():
            folder = tmp_path / mode
            folder.mkdir()
            shutil.copy(tmp_path / "silent_model.py", folder)
            jobs.append(stack.enter_context(cluster(zygote, folder, train_steps=4, ps=2, min_workers=2, **settings)))
        silence.begin(0)
        for job, index in product(jobs, range(2)):
            job.start_worker(index, "--model=silent_model")
        poll_until(lambda: silence.workers == 6, 60, "all workers in a silent step")
        time.sleep(SILENT_S)
        silence.end()
        for job in jobs:
            assert set(job.wait_all().values()) == {0}
            assert not any("retry" in proc.text or "cut_links" in proc.text for proc in job.procs)
