"""`psruntime control` on real jobs: what it says is so, in every mode, and nothing is lost by it."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psruntime.commands import control
from psruntime.core.members.view import Phase
from psruntime.observe.rounds_log import rounds_of
from tests.cluster.test_rounds import replay, start, write_model
from tests.cluster.test_scripts import PACED
from tests.cluster.test_stopping import ASYNC, BOUNDED, NEVER, SMALL, newest_step
from tests.support.cluster import Cluster, Zygote, cluster
from tests.support.polling import poll_until

pytestmark = pytest.mark.cluster

Control = Callable[..., tuple[int, str, str]]
STILL_S = 1.5  # more than a heartbeat of these clusters, with which news would come


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str]) -> Callable[[Cluster], Control]:
    """Gives the command for a cluster: (exit code, what it wrote, what it complained)."""

    def of(job: Cluster) -> Control:
        def run(*words: object, timeout_s: float = 60) -> tuple[int, str, str]:
            capsys.readouterr()
            flags = [f"--coordinator={job.coordinator}", f"--timeout={timeout_s}"]
            code = control.main([*flags, *map(str, words)])
            return code, *capsys.readouterr()

        return run

    return of


def step_in(text: str, before: str) -> int:
    """The global step that a command names, after these words."""
    found = re.fullmatch(rf"{before} at global step (\d+)\n", text)
    assert found, text
    return int(found[1])


def pause_and_resume(job: Cluster, ask: Control) -> None:
    """The global step stands still, and goes on; nobody is lost, and no push."""
    code, out, err = ask("pause")
    assert code == 0, err
    paused = step_in(out, "paused")
    members = [(m.role, m.index, m.incarnation) for m in job.status().members]
    time.sleep(STILL_S)
    status = job.status()
    assert status.global_step == paused and status.phase is Phase.TRAINING
    assert f"paused by control at global step {paused}" in status.reason
    why = {f"paused by control at global step {paused}"}
    poll_until(
        lambda: {m.worker_stats.waiting for m in job.status().members if m.worker_stats} == why, 10, "the reason"
    )
    assert ask("pause")[1] == f"paused already at global step {paused}\n"
    code, out, err = ask("resume")
    assert code == 0 and step_in(out, "resumed") == paused, err
    job.wait_for_step(paused + 30)
    assert [(m.role, m.index, m.incarnation) for m in job.status().members] == members
    assert job.status().steps_lost == 0


@pytest.mark.long
def test_an_async_job_is_paused_saved_and_drained(zygote: Zygote, tmp_path: Path, asked: Any) -> None:
    checkpoints = tmp_path / "c"
    with cluster(
        zygote, tmp_path, ps=2, min_workers=2, train_steps=NEVER, save_steps=NEVER, checkpoint_dir=checkpoints,
        pipeline=2,
    ) as job:  # fmt: skip
        workers = [job.start_worker(index, SMALL) for index in range(2)]
        job.wait_for_step(50)
        ask = asked(job)
        pause_and_resume(job, ask)

        before = job.status().global_step
        code, out, err = ask("save")
        assert code == 0 and step_in(out, "saved") == newest_step(checkpoints) >= before, err
        paused = step_in(ask("pause")[1], "paused")
        assert step_in(ask("save")[1], "saved") == newest_step(checkpoints) == paused, "without a step of the chief"
        assert ask("bound", 3)[0::2] == (
            2,
            "psruntime control: bound is for mode bounded, and the job's mode is async\n",
        )
        assert step_in(ask("learning-rate-scale", 0.5)[1], "learning-rate-scale 0.5") == paused

        job.start_worker(2, SMALL)
        poll_until(lambda: len(job.worker_pushes()) == 3, 60, "a third worker, which is held")
        time.sleep(STILL_S)
        assert job.status().global_step == paused
        ask("resume")
        poll_until(lambda: job.worker_pushes().get(2), 60, "its first step")

        chief = next(m.index for m in job.status().members if m.chief)
        code, out, err = ask("drain", "worker", chief)
        assert code == 0, err
        left = step_in(out, f"worker {chief} has left")
        assert job.latest("worker", chief).wait() == 128 + signal.SIGTERM
        assert "stopping signal=SIGTERM" in workers[chief].text
        job.wait_for_step(left + 30)

        code, out, err = ask("drain")
        assert code == 0, err
        step = step_in(out, "drained; the job is done")
        codes = job.wait_all()
        assert codes.pop(f"worker-{chief}") == 143 and set(codes.values()) == {0}
        assert newest_step(checkpoints) == step
        assert "held out, at global step" in "".join(proc.text for proc in job.procs)
        assert all("balanced=True" in ps.wait_for(" ledger ") for ps in job.ps)
        accounts = job.ps[0].wait_for(" accounts ")
        assert "balanced=True" in accounts, accounts
        said = job.ps[0].text
        assert re.search(r' control command=pause by="?127\.0\.0\.1:\d+', said) and " steered command=drain " in said


@pytest.mark.long
def test_another_bound_holds_from_the_step_that_is_said(zygote: Zygote, tmp_path: Path, asked: Any) -> None:
    with cluster(zygote, tmp_path, ps=2, min_workers=2, train_steps=NEVER, **BOUNDED) as job:
        for index in range(2):
            job.start_worker(index, SMALL)
        job.wait_for_step(50)
        ask = asked(job)
        pause_and_resume(job, ask)
        for bound in (1, 9, 0):
            code, out, err = ask("bound", bound)
            assert code == 0, err
            changed = step_in(out, f"bound {bound}")
            assert job.status().steering.settings.bound == bound
            job.wait_for_step(changed + 60)
        job.latest("worker", 1).signal(signal.SIGSTOP)
        time.sleep(0.5)
        leads = {m.index: m.lead for m in job.status().members if m.worker_stats}
        job.latest("worker", 1).signal(signal.SIGCONT)
        assert max(leads.values()) <= 1, "a worker that has completed a step of lead 0 is one ahead"
        ps = [m.ps_stats for m in job.status().members if m.ps_stats]
        assert not any(stats.dropped.get("stale") for stats in ps), "no update was refused for a limit that came early"
        assert ask("drain")[0] == 0
        assert set(job.wait_all().values()) == {0}
        assert all("balanced=True" in ps.wait_for(" ledger ") for ps in job.ps)


@pytest.mark.long
def test_every_round_has_one_scale_and_the_replay_knows_it(zygote: Zygote, tmp_path: Path, asked: Any) -> None:
    """Two ps, three workers that come and go, and a scale that changes: the parameters are those of one process."""
    model = write_model(tmp_path, "steered", optimizer="momentum", table=True)
    with cluster(
        zygote, tmp_path, mode="sync", ps=2, min_workers=2, train_steps=NEVER, save_steps=NEVER,
        checkpoint_dir=tmp_path / "checkpoints", rounds_log=tmp_path / "rounds.jsonl",
    ) as job:  # fmt: skip
        for index in range(2):
            start(job, index, model)
        job.wait_for_step(10)
        ask = asked(job)
        scales = {1: 1.0}
        for scale in (0.25, 3.0):
            code, out, err = ask("learning-rate-scale", scale)
            assert code == 0, err
            scales[step_in(out, f"learning-rate-scale {scale:g}") + 1] = scale
        pause_and_resume(job, ask)
        start(job, 2, model)
        poll_until(lambda: job.worker_pushes().get(2), 60, "a round of the third worker")
        step = step_in(ask("pause")[1], "paused")
        assert step_in(ask("save")[1], "saved") == newest_step(tmp_path / "checkpoints") == step
        assert step_in(ask("learning-rate-scale", 0.5)[1], "learning-rate-scale 0.5") == step
        scales[step + 1] = 0.5
        ask("resume")
        job.wait_for_step(step + 5)
        assert step_in(ask("drain", "worker", 0)[1], "worker 0 has left") >= step
        job.wait_for_step(step + 20)
        assert ask("drain")[0] == 0
        codes = job.wait_all()
        assert codes.pop("worker-0") == 143 and set(codes.values()) == {0}
        assert all("balanced=True" in ps.wait_for(" ledger ") for ps in job.ps)
    for record in rounds_of(tmp_path / "rounds.jsonl"):
        expected = scales[max(first for first in scales if first <= record["round"])]
        assert record.get("learning_rate_scale", 1.0) == expected, record
    outcome = replay(zygote, tmp_path, model)
    assert outcome["bits_differ"] == {}


@pytest.mark.long
def test_what_is_in_force_outlives_ps_0_and_a_signal_ends_a_paused_job(
    zygote: Zygote, tmp_path: Path, asked: Any
) -> None:
    checkpoints = tmp_path / "c"
    with cluster(
        zygote, tmp_path, ps=2, min_workers=2, train_steps=NEVER, save_steps=NEVER, checkpoint_dir=checkpoints, **ASYNC
    ) as job:
        for index in range(2):
            job.start_worker(index, SMALL)
        job.wait_for_step(50)
        ask = asked(job)
        assert ask("learning-rate-scale", 0.5)[0] == ask("save")[0] == ask("pause")[0] == 0
        settings = job.status().steering.settings
        job.ps[0].kill()
        again = job.start_again(job.ps[0])
        again.wait_for("READY coordinator")
        poll_until(lambda: job.status().phase is Phase.TRAINING, 60, "training")
        status = job.status()
        assert status.steering.settings == settings and settings.paused
        time.sleep(STILL_S)
        assert job.status().global_step == status.global_step
        again.signal(signal.SIGTERM)
        codes = job.wait_all()
        assert codes["ps-0.1"] == 143 and {codes["worker-0"], codes["worker-1"], codes["ps-1"]} == {75}
        assert newest_step(checkpoints) == status.global_step


@pytest.mark.long
def test_scripts_are_held_and_let_go_too(zygote: Zygote, tmp_path: Path, asked: Any) -> None:
    flags = [f"--checkpoint_dir={tmp_path / 'c'}", f"--last_step={NEVER}"]
    with cluster(zygote, tmp_path, min_workers=2) as job:
        scripts = [job.start_script(index, PACED, *flags) for index in range(2)]
        job.wait_for_step(50)
        ask = asked(job)
        pause_and_resume(job, ask)
        for command, why in ((["save"], "hooks save"), (["learning-rate-scale", 2], "optimizers are its own")):
            code, _, err = ask(*command)
            assert code == 2 and "the job is a script's own" in err and why in err
        left = step_in(ask("drain", "worker", 1)[1], "worker 1 has left")
        assert scripts[1].wait() == 128 + signal.SIGTERM
        job.wait_for_step(left + 30)
        assert ask("drain")[0] == 0
        assert job.wait_all() == {"ps-0": 0, "script-0": 0, "script-1": 143}
        assert "left the block after" in scripts[0].text
