"""A job of scripts has one model and its own folder, as one with a model_fn."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from psruntime import tf1
from psruntime.graph.base.checkpoint_reader import readable
from psruntime.graph.checkpoint.listing import CheckpointList, newest_step
from tests.cluster.test_scripts import PACED, chief_of, last_step
from tests.support.cluster import Proc, Zygote, cluster
from tests.support.polling import poll_until

pytestmark = pytest.mark.cluster

KILLED = 2  # chiefs
KEPT = 3  # checkpoints, by the script's own Saver


def refusal(proc: Proc, code: int = 2) -> str:
    """The line with which a script ends; the only one, without a traceback."""
    assert proc.wait() == code, proc.text
    assert "Traceback" not in proc.text
    (error,) = [line for line in proc.text.splitlines() if " error " in line]
    return error


def newest(folder: Path) -> int:
    """The global step of the newest checkpoint; TensorFlow takes the folder's name for a pattern, and finds none."""
    return newest_step(str(folder)) or -1


def listed(folder: Path) -> set[str]:
    return {Path(path).name for path in CheckpointList(str(folder)).listed()}


def mark_of(folder: Path) -> dict[str, object]:
    mark = json.loads((folder / ".owner").read_text())  # which is there at any time
    assert isinstance(mark, dict)
    return mark


@pytest.mark.long
def test_a_script_with_another_model_than_the_jobs_is_refused(zygote: Zygote, tmp_path: Path) -> None:
    """Beside the others, and in place of a worker that was killed."""
    flags = [f"--checkpoint_dir={tmp_path / 'c'}", "--last_step=400"]
    with cluster(zygote, tmp_path) as job:
        first = job.start_script(0, PACED, *flags, "--step_s=0.02")
        job.wait_for_step(5)
        edited = [job.start_script(1, PACED, *flags, "--rate=0.5"), job.start_script(2, PACED, *flags, "--momentum")]
        rate, optimizer = map(refusal, edited)
        has_another = "another model than the job, first difference: "
        assert f"worker 1 has {has_another}optimizer ApplyAdam, lr: 0.5, where the job has 0.01; start it" in rate
        assert f"worker 2 has {has_another}optimizer: ApplyMomentum, where the job has ApplyAdam; start" in optimizer
        first.kill()
        assert "lr: 0.5, where the job has 0.01" in refusal(job.start_script(0, PACED, *flags, "--rate=0.5"))
        assert job.start_script(0, PACED, *flags).wait() == 0
        assert set(job.wait_all().values()) == {0, 2, -signal.SIGKILL}
    assert last_step(tmp_path / "c") >= 400 and not (tmp_path / "c" / ".owner").exists()


@pytest.mark.long
@pytest.mark.parametrize("name", ["c[1]*?"])
def test_a_folder_has_one_live_job_of_scripts(name: str, zygote: Zygote, tmp_path: Path) -> None:
    """Any of its workers may be the chief.  The next job takes over the folder of a killed one, and continues there."""
    folder = tmp_path / name
    flags = [f"--checkpoint_dir={folder}", "--last_step=1000000"]
    for each in ("first", "second", "third", "fourth"):
        (tmp_path / each).mkdir()
    with cluster(zygote, tmp_path / "first", min_workers=1) as first:
        scripts = [first.start_script(0, PACED, *flags), first.start_script(1, PACED, *flags)]
        poll_until(lambda: newest(folder) >= 200, 60, "more checkpoints than are kept")
        before = chief_of(first)
        assert before is not None
        assert mark_of(folder)["pid"] == scripts[before].pid
        with cluster(zygote, tmp_path / "second") as second:
            said = refusal(second.start_script(0, PACED, *flags))
            assert f"belongs to job {mark_of(folder)['job_id']} of coordinator {first.coordinator}, which is" in said
            assert second.ps[0].wait() == 1
            assert second.wait_all()["ps-0"] == 1
        scripts[before].kill()
        poll_until(lambda: mark_of(folder)["pid"] == scripts[1 - before].pid, 30, "the next chief's mark")
        reached = newest(folder)
        poll_until(lambda: newest(folder) > reached, 30, "a checkpoint of the next chief")
        scripts[1 - before].kill()
        first.ps[0].kill()
        first.wait_all()
    saved = newest(folder)
    assert (folder / ".owner").exists()
    with cluster(zygote, tmp_path / "third") as third:
        script = third.start_script(0, PACED, *flags[:1], f"--last_step={saved + 60}", "--rate=0.5")
        restored = script.wait_for(" restored ")
        assert f"global_step={saved} " in restored and str(folder) in restored
        assert "optimizer ApplyAdam, lr: 0.5, where the checkpoint has 0.01" in script.wait_for(" model_differs ")
        assert set(third.wait_all().values()) == {0}
    written = {path.name.removesuffix(".index") for path in folder.iterdir() if path.suffix == ".index"}
    assert newest(folder) >= saved + 60 and listed(folder) <= written and len(listed(folder)) == KEPT
    assert len(written - listed(folder)) <= KILLED, "each Saver that was killed may leave one, and none else"
    assert f"model.ckpt-{newest(folder)}" in tf1.train.get_checkpoint_state(readable(str(folder))).model_checkpoint_path
    with cluster(zygote, tmp_path / "fourth") as fourth:
        said = refusal(fourth.start_script(0, PACED, *flags, "--size=9"), code=1)
        assert "does not fit the script: weights float32[10] there, float32[9] in the model; " in said
        assert fourth.ps[0].wait() == 1
        fourth.wait_all()
