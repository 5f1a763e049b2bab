"""`psruntime control mode`: a running job goes on in another mode, and nothing is lost by it."""

from __future__ import annotations

import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from psruntime.core.members.view import Phase
from psruntime.observe.records import read_records
from psruntime.observe.rounds_log import rounds_of
from tests.cluster.test_control import Control, asked, step_in  # noqa: F401 - a fixture
from tests.cluster.test_rounds import replay, start, write_model
from tests.cluster.test_stopping import NEVER, SMALL, newest_step
from tests.support.cluster import Cluster, Zygote, cluster
from tests.support.polling import poll_until

pytestmark = pytest.mark.cluster


def switch(job: Cluster, ask: Control, mode: str) -> int:
    """The global step from which on it is so; the job trains on in that mode, and no step was lost."""
    code, out, err = ask("mode", *mode.split())
    assert code == 0, err
    step = step_in(out, f"mode {mode}")
    job.wait_for_step(step + 20)
    status = job.status()
    assert status.phase is Phase.TRAINING and status.steps_lost == 0
    settings = status.steering.settings
    assert " ".join([settings.mode, *([] if settings.bound is None else [str(settings.bound)])]) == mode
    return step


@pytest.mark.long
def test_sync_is_exact_from_the_switch_on(zygote: Zygote, tmp_path: Path, asked: Any) -> None:  # noqa: F811
    """From the checkpoint of the switch to the end the job is what one process makes of the joint batches."""
    model = write_model(tmp_path, "switched", optimizer="adam", table=True)
    checkpoints, log = tmp_path / "checkpoints", tmp_path / "rounds.jsonl"
    with cluster(
        zygote, tmp_path, ps=2, min_workers=2, train_steps=NEVER, save_steps=NEVER, keep=2, checkpoint_dir=checkpoints,
        rounds_log=log,
    ) as job:  # fmt: skip
        for index in range(2):
            start(job, index, model)
        job.wait_for_step(30)
        ask = asked(job)
        paused = step_in(ask("pause")[1], "paused")
        assert step_in(ask("save")[1], "saved") == paused
        code, out, err = ask("mode", "sync")
        assert (code, step_in(out, "mode sync")) == (0, paused), err
        assert ask("mode", "sync")[1] == f"mode sync already at global step {paused}\n"
        assert ask("bound", 3)[2] == "psruntime control: bound is for mode bounded, and the job's mode is sync\n"
        ask("resume")
        job.wait_for_step(paused + 30)
        assert ask("drain")[0] == 0
        assert set(job.wait_all().values()) == {0}
        assert all("balanced=True" in ps.wait_for(" ledger ") for ps in job.ps)
        assert all(" mode mode=sync " in job.latest("worker", index).text for index in range(2))
    assert next(iter(rounds_of(log)))["round"] == paused + 1
    outcome = replay(zygote, tmp_path, model)
    assert outcome["rounds"] == [paused + 1, newest_step(checkpoints)]
    assert outcome["bits_differ"] == {}


def check_bounds(record: str) -> None:
    """An update sees at most (2 bound + 1) of each of the two other workers in between: docs/modes.md says why."""
    measured: dict[int | None, list[int]] = {}
    for each in read_records(record):
        assert each.outcome in ("applied", "contributed")
        if each.mode != "sync" and each.staleness is not None:
            measured.setdefault(each.bound, []).append(each.staleness)
    assert max(measured[0]) <= 2 and max(measured[2]) <= 10
    assert max(measured[None]) > 2, (
        "in mode async they are staler than under bound 0: the bound was not in force before"
    )


def write_picky_model(folder: Path) -> str:
    """A module with a small model that cannot be built while the file `refuses` is there."""
    (folder / "picky.py").write_text(
        "import os\n"
        "from tests.cluster import models\n"
        "from tests.cluster.models import input_fn\n"
        "def model_fn(features, labels, mode):\n"
        f"    if os.path.exists({str(folder / 'refuses')!r}):\n"
        "        raise ValueError('it refuses')\n"
        "    return models.model_fn(features, labels, mode)\n"
    )
    return "picky"


@pytest.mark.long
def test_all_switches_lose_nothing_and_a_bound_holds(zygote: Zygote, tmp_path: Path, asked: Any) -> None:  # noqa: F811
    """All six between three modes, then the losses of a worker, a ps and ps 0, each beside a switch."""
    checkpoints, record = tmp_path / "checkpoints", str(tmp_path / "record.jsonl")
    with cluster(
        zygote, tmp_path, ps=2, min_workers=2, train_steps=NEVER, save_steps=NEVER, checkpoint_dir=checkpoints,
        lease_s=3,
    ) as job:  # fmt: skip
        model = write_picky_model(tmp_path)
        for index in range(3):
            job.start_worker(index, f"--model={model}", f"--record={record}", f"--slowdown={1 + 7 * (index == 2)}")
        job.wait_for_step(30)
        ask = asked(job)
        (tmp_path / "refuses").touch()
        code, _, err = ask("mode", "sync")
        assert code == 1 and "cannot train in mode sync: " in err and "it refuses" in err and err.count("\n") == 1
        job.wait_for_step(job.status().global_step + 20)
        (tmp_path / "refuses").unlink()
        steps = [switch(job, ask, mode) for mode in ("sync", "bounded 2", "async", "bounded 0", "sync", "async")]
        assert all(later >= earlier + 20 for earlier, later in pairwise(steps))
        check_bounds(record)
        assert ask("mode", "bounded", "1")[0] == 0
        ps = [m.ps_stats for m in job.status().members if m.ps_stats]
        assert all(not any(stats.dropped.values()) for stats in ps), "no update was refused"
        assert ask("save")[0] == 0

        job.latest("worker", 1).signal(signal.SIGKILL)
        at = switch(job, ask, "sync")
        job.start_worker(1, SMALL)
        poll_until(lambda: len(job.worker_pushes()) == 3, 60, "the worker, in the mode in force")
        job.wait_for_step(at + 60)
        assert ask("save")[0] == 0
        job.ps[1].kill()
        job.start_again(job.ps[1])
        code, _, err = ask("mode", "async", timeout_s=90)
        assert code == 0, err
        assert ask("save", timeout_s=90)[0] == 0
        assert ask("mode", "bounded", "3")[0] == 0
        job.ps[0].kill()
        job.start_again(job.ps[0]).wait_for("READY coordinator")
        poll_until(lambda: job.status().phase is Phase.TRAINING, 60, "training")
        settings = job.status().steering.settings
        assert (settings.mode, settings.bound) == ("bounded", 3), "what is in force outlives ps 0"
        assert ask("drain")[0] == 0
        job.wait_all()
        for ps_index in range(2):
            assert "balanced=True" in job.latest("ps", ps_index).wait_for(" ledger ")
        assert "Traceback" not in "".join(proc.text for proc in job.procs)


@pytest.mark.long
def test_a_warm_start_is_not_needed_again(zygote: Zygote, tmp_path: Path, asked: Any) -> None:  # noqa: F811
    """Its checkpoint is removed once the job trains; then a worker comes, and then the mode changes."""
    old = tmp_path / "old"
    for name in "ab":
        (tmp_path / name).mkdir()
    with cluster(zygote, tmp_path / "a", ps=1, train_steps=1, checkpoint_dir=old) as job:
        job.start_worker(0, SMALL)
        assert set(job.wait_all(120).values()) == {0}
    with cluster(zygote, tmp_path / "b", ps=1, train_steps=NEVER, warm_start=old) as job:
        first = job.start_worker(0, SMALL)
        job.wait_for_step(1)
        first.wait_for(" warm_started ")
        for file in old.iterdir():
            file.unlink()
        late = job.start_worker(1, SMALL)
        assert "old is no checkpoint, nor a folder that has one" in late.wait_for(" cannot_warm_start ")
        poll_until(lambda: job.worker_pushes().get(1, 0) > 0, 60, "steps of the late worker")
        switch(job, asked(job), "sync")
        assert all(" mode mode=sync " in worker.text for worker in (first, late))
        assert asked(job)("drain")[0] == 0
        assert set(job.wait_all().values()) == {0}
