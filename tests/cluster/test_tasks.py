"""A job whose processes are all started by the same command: each finds its task in TF_CONFIG."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.cluster import ROOT, Proc, Zygote, codes_at_end
from tests.support.free_ports import free_ports
from tests.support.worlds import World

pytestmark = pytest.mark.cluster

STEPS = 1000  # some seconds: the evaluator looks once a second
END_S = 120.0
SOFTMAX = ROOT / "psruntime" / "examples" / "softmax.py"

SCRIPT = """
import os
from psruntime import MonitoredTrainingSession, cluster_task, tf1 as tf

tf.disable_v2_behavior()
task = cluster_task()
setter = tf.train.replica_device_setter(ps_tasks=len(task.ps), worker_device=f"/job:worker/task:{task.index}")
with tf.device(setter):
    global_step = tf.Variable(0)
    weights = tf.Variable(tf.zeros([4]))
    loss = tf.reduce_sum(tf.square(weights - 1.0))
    train_op = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=global_step)
hooks = [tf.train.StopAtStepHook(last_step=100)]
with MonitoredTrainingSession(checkpoint_dir=os.environ["FOLDER"], hooks=hooks) as sess:
    while not sess.should_stop():
        sess.run(train_op)
print(f"worker {task.index} stopped")
"""


def free_addresses(count: int) -> list[str]:
    return [f"localhost:{port}" for port in free_ports(count)]


@pytest.mark.long
def test_a_cluster_of_tf_config_trains_and_its_evaluator_measures_every_checkpoint(
    zygote: Zygote, tmp_path: Path
) -> None:
    roles = ["worker", "evaluator", "chief", "ps"]  # in this order: everybody waits for the ps
    cluster = {role: [address] for role, address in zip(roles, free_addresses(len(roles)), strict=True)}
    flags = [f"--train-steps={STEPS}", "--save-steps=200", f"--checkpoint-dir={tmp_path / 'checkpoints'}", "--linger=5"]

    def start(role: str) -> Proc:
        config = json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}})
        world = World(variables={"TF_CONFIG": config})
        return zygote.start(role, ["task", *flags], tmp_path / f"{role}.log", [str(tmp_path)], world)

    procs = {role: start(role) for role in roles}
    assert codes_at_end([*procs.values()], END_S) == [0] * len(roles), [proc.text for proc in procs.values()]
    joined = re.findall(r'member_joined member="(.*?)" address=(\S+)', procs["ps"].text.partition(" phase was")[0])
    assert {("worker 0", cluster["chief"][0]), ("worker 1", cluster["worker"][0])} < set(joined), "the job began before"
    assert f"READY coordinator 0 {cluster['ps'][0]}" in procs["ps"].text
    (at_end,) = (line for proc in procs.values() for line in held_out(proc) if proc is not procs["evaluator"])
    measured = held_out(procs["evaluator"])
    assert measured[-1] == at_end and len(measured) >= 2
    assert list((tmp_path / "checkpoints" / "eval").iterdir())


@pytest.mark.long
@pytest.mark.parametrize("which", ["tutorial", "softmax"])
def test_a_script_finds_its_task_in_tf_config(which: str, zygote: Zygote, tmp_path: Path) -> None:
    """One as a well-known tutorial prints it, whose global step is a plain variable; and the example."""
    script, folder = tmp_path / "script.py", tmp_path / "checkpoints"
    script.write_text(SCRIPT if which == "tutorial" else SOFTMAX.read_text())
    flags = [] if which == "tutorial" else [f"--checkpoint_dir={folder}", "--last_step=100"]
    cluster = dict(zip(("ps", "chief", "worker"), ([address] for address in free_addresses(3)), strict=True))
    procs = []
    for role in cluster:
        config = json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}})
        world = World(environment={"TF_CONFIG": config, "FOLDER": str(folder)})
        argv = ["task"] if role == "ps" else ["script", str(script), *flags]
        procs.append(zygote.start(role, argv, tmp_path / f"{role}.log", [str(tmp_path)], world))
    assert codes_at_end(procs, END_S) == [0, 0, 0], [proc.text for proc in procs]
    stopped = re.findall(r"^worker (\d):? stopped", "\n".join(proc.text for proc in procs), re.MULTILINE)
    assert sorted(stopped) == ["0", "1"]
    assert (folder / "checkpoint").exists()


def held_out(proc: Proc) -> list[str]:
    return re.findall(r"^held out, at global step .*$", proc.text, re.MULTILINE)
