"""A cluster of workers alone, each with a ps of its own beside it: machines die and come back."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import pytest

from psruntime.core.members.view import Phase
from psruntime.core.steering.commands import Command, Kind
from psruntime.rpc.client.coordinator_client import CoordinatorClient
from psruntime.rpc.wire.messages import ControlRequest
from tests.support.cluster import Proc, Zygote
from tests.support.free_ports import free_ports
from tests.support.polling import poll_until
from tests.support.worlds import World

pytestmark = pytest.mark.cluster

STEPS, SAVE_STEPS = 1000, 50
END_S = 120.0
SCRIPT = """
import os
from psruntime import MonitoredTrainingSession, cluster_task, tf1 as tf

tf.disable_v2_behavior()
task = cluster_task(colocate_ps=True)
setter = tf.train.replica_device_setter(ps_tasks=len(task.ps), worker_device=f"/job:worker/task:{task.index}")
with tf.device(setter):
    global_step = tf.train.get_or_create_global_step()
    weights = tf.get_variable("weights", [4], initializer=tf.zeros_initializer())
    loss = tf.reduce_sum(tf.square(weights - 1.0))
    train_op = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=global_step)
hooks = [tf.train.StopAtStepHook(last_step=100)]
folder = os.environ["FOLDER"]
with MonitoredTrainingSession(
    checkpoint_dir=folder, hooks=hooks, colocate_ps=True, ps_arguments=["--linger=1"]
) as sess:
    while not sess.should_stop():
        sess.run(train_op)
print(f"worker {task.index} stopped")
"""

MOBILENET = """
from psruntime.examples.mobilenet_v2 import input_fn, model_fn

__all__ = ["input_fn", "model_fn"]

if __name__ == "__main__":
    import sys

    from psruntime import task

    sys.exit(task.main(["--model", "my_script", "--colocate-ps", *sys.argv[1:]]))
"""


class Machines:
    """Two machines, each with the same command and its line of TF_CONFIG."""

    def __init__(self, zygote: Zygote, folder: Path, *argv: str) -> None:
        self._zygote, self._folder, self._argv = zygote, folder, argv
        self._cluster = {"worker": [f"localhost:{port}" for port in free_ports(2)]}
        self._starts = 0
        self.all: list[Proc] = []

    @property
    def coordinator(self) -> str:
        return self._cluster["worker"][0]

    def start(self, index: int) -> Proc:
        config = {"cluster": self._cluster, "task": {"type": "worker", "index": index}}
        world = World(environment={"TF_CONFIG": json.dumps(config), "FOLDER": str(self._folder / "checkpoints")})
        self._starts += 1
        log = self._folder / f"{index}.{self._starts}.log"
        self.all.append(self._zygote.start(f"machine-{index}", [*self._argv], log, [str(self._folder)], world))
        return self.all[-1]

    def end(self) -> None:
        for proc in self.all:
            if proc.code is None:
                proc.kill()


def newest(folder: Path) -> int:
    """Global step of the newest checkpoint; 0 without one."""
    return max((int(path.stem.rpartition("-")[2]) for path in folder.glob("model.ckpt-*.index")), default=0)


def await_checkpoint_after(global_step: int, folder: Path) -> None:
    poll_until(lambda: newest(folder) > global_step, END_S, f"a checkpoint after global step {global_step}")


@pytest.mark.long
def test_a_machine_of_two_that_is_killed_comes_back(zygote: Zygote, tmp_path: Path) -> None:
    """First the one without the coordinator, then the one with it."""
    machines = Machines(
        zygote, tmp_path, "task", "--colocate-ps", f"--train-steps={STEPS}", f"--save-steps={SAVE_STEPS}",
        f"--checkpoint-dir={tmp_path / 'checkpoints'}", "--linger=1", "--lease=2", "--min-ps-bytes=0",
    )  # fmt: skip
    try:
        procs = [machines.start(0), machines.start(1)]
        saved = []  # when each was killed
        for index in (1, 0):
            await_checkpoint_after(newest(tmp_path / "checkpoints"), tmp_path / "checkpoints")
            saved.append(newest(tmp_path / "checkpoints"))
            procs[index].kill()
            procs[index] = machines.start(index)
        assert [proc.wait(END_S) for proc in procs] == [0, 0], [proc.text for proc in machines.all]
    finally:
        machines.end()
    logs = "\n".join(proc.text for proc in machines.all)
    restored = sorted(int(step) for step in re.findall(r" restored global_step=(\d+) ", logs))
    assert len(restored) == len(saved), restored
    assert all(step >= least for step, least in zip(restored, saved, strict=True)), (restored, saved)
    assert " mode=sync " in logs and len(re.findall("^held out, at global step 1000: ", logs, re.MULTILINE)) == 1


@pytest.mark.long
def test_a_machine_without_variables_takes_nothing_with_it(zygote: Zygote, tmp_path: Path) -> None:
    """Digits are small enough for one ps, so the other has none."""
    machines = Machines(
        zygote, tmp_path, "task", "--colocate-ps", f"--train-steps={STEPS}", f"--save-steps={10 * STEPS}",
        f"--checkpoint-dir={tmp_path / 'checkpoints'}", "--linger=1", "--lease=2",
    )  # fmt: skip
    try:
        procs = [machines.start(0), machines.start(1)]
        procs[0].wait_for(" now=TRAINING ")
        with closing(CoordinatorClient(machines.coordinator)) as client:
            poll_until(lambda: client.get_status()[0].global_step > 20, END_S, "some rounds")
        procs[1].kill()
        procs[1] = machines.start(1)
        assert [proc.wait(END_S) for proc in procs] == [0, 0], [proc.text for proc in machines.all]
    finally:
        machines.end()
    logs = "\n".join(proc.text for proc in machines.all)
    assert " adopted " in logs and " restored " not in logs and " crash " not in logs and " restart 1 of" not in logs
    assert not re.search(r"steps_lost=[1-9]", logs)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_mobilenet_v2_of_the_two_worker_tutorial_goes_on_when_one_is_killed(zygote: Zygote, tmp_path: Path) -> None:
    """Each is started as `python my_script.py` with its line of TF_CONFIG."""
    folder = tmp_path / "checkpoints"
    (tmp_path / "my_script.py").write_text(MOBILENET)
    machines = Machines(
        zygote, tmp_path, "script", str(tmp_path / "my_script.py"), "--train-steps=40", "--save-steps=5",
        f"--checkpoint-dir={folder}", "--batch-size=4", "--linger=1", "--lease=2",
    )  # fmt: skip
    try:
        procs = [machines.start(0), machines.start(1)]
        await_checkpoint_after(0, folder)
        saved = newest(folder)
        procs[1].kill()
        procs[1] = machines.start(1)
        assert [proc.wait(4 * END_S) for proc in procs] == [0, 0], [proc.text for proc in machines.all]
    finally:
        machines.end()
    logs = "\n".join(proc.text for proc in machines.all)
    restored = [int(step) for step in re.findall(r" restored global_step=(\d+) ", logs)]
    assert restored and min(restored) >= saved, "nothing is lost but the rounds since the last checkpoint"
    assert len(re.findall("^held out, at global step 40: .*accuracy", logs, re.MULTILINE)) == 1


@pytest.mark.long
def test_a_script_starts_a_ps_beside_it(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    machines = Machines(zygote, tmp_path, "script", str(tmp_path / "script.py"))
    try:
        procs = [machines.start(1), machines.start(0)]
        assert [proc.wait(END_S) for proc in procs] == [0, 0], [proc.text for proc in procs]
    finally:
        machines.end()
    assert sorted(re.findall(r"^worker \d stopped", "\n".join(proc.text for proc in procs), re.MULTILINE)) == [
        "worker 0 stopped", "worker 1 stopped",
    ]  # fmt: skip
    assert (tmp_path / "checkpoints" / "checkpoint").exists()


LATE = """
import os, time
from tests.cluster.models import input_fn, model_fn

while os.path.exists("{late}"):
    time.sleep(0.1)
"""


@pytest.mark.long
def test_a_worker_that_comes_when_the_job_is_done_ends_with_its_ps(zygote: Zygote, tmp_path: Path) -> None:
    """Its ps heard of the end; the coordinator is gone by the time at which the worker would ask it."""
    late = tmp_path / "late"
    (tmp_path / "late_model.py").write_text(LATE.format(late=late))
    machines = Machines(
        zygote, tmp_path, "task", "--colocate-ps", "--model=late_model", "--mode=async", "--train-steps=1000000",
        "--linger=1", "--lease=2",
    )  # fmt: skip
    try:
        procs = [machines.start(0), machines.start(1)]
        procs[0].wait_for(" now=TRAINING ")
        late.touch()
        procs[1].kill()
        again = machines.start(1)
        again.wait_for("READY ps 1 ")
        with closing(CoordinatorClient(machines.coordinator)) as client:
            poll_until(lambda: client.get_status()[0].phase is Phase.TRAINING, END_S, "the training to go on")
            client.control(ControlRequest(Command(Kind.DRAIN, "drain"), 5.0), 10.0)
        assert procs[0].wait(END_S) == 0
        late.unlink()
        assert again.wait(END_S) == 0, again.text
        assert " joined " not in "\n".join(line for line in again.text.splitlines() if " worker 1 " in line)
    finally:
        late.unlink(missing_ok=True)
        machines.end()


@pytest.mark.long
@pytest.mark.parametrize("index", [0, 1])
def test_a_second_process_of_an_index_ends_with_the_code_of_its_ps(zygote: Zygote, tmp_path: Path, index: int) -> None:
    """What refuses its ps is the cause, not the signal with which the worker is ended for it."""
    machines = Machines(zygote, tmp_path, "task", "--colocate-ps", "--train-steps=1000000", "--linger=0", "--lease=2")
    try:
        first = [machines.start(0), machines.start(1)]
        first[0].wait_for(" now=TRAINING ")
        second = machines.start(index)
        assert second.wait(END_S) == 2, second.text
        assert [proc.code for proc in first] == [None, None]
    finally:
        machines.end()
