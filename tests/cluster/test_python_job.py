"""`psruntime.train` in a program and in the cells of a notebook: whole jobs, from which no process is left."""

from __future__ import annotations

import json
import re
import signal
import sys

import pytest

from tests.support.commands import Commands
from tests.support.polling import poll_until

pytestmark = pytest.mark.cluster

MODEL = """
import json
import numpy as np
import tensorflow.compat.v1 as tf
import psruntime
from psruntime import ModelSpec

X = np.random.RandomState(1).randn(512, 4).astype("f")
WEIGHTS = np.array([1, 2, 3, 4], "f")
flipped = lambda x: x if x[0] > 0 else -x  # which AutoGraph reads from its source


def input_fn(context):
    dataset = tf.data.Dataset.from_tensor_slices(X).map(flipped)
    return dataset.map(lambda x: (x, tf.reduce_sum(x * WEIGHTS))).batch(context.batch_size)


def model_fn(features, labels, mode, params):
    w = tf.get_variable("w", [4, 1], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(features, w)[:, 0] - labels))
    return ModelSpec(loss, tf.train.GradientDescentOptimizer, params["lr"])

"""
PROGRAM = """
if __name__ == "__main__":
    import __main__
    flags = {"set": {"lr": 0.05}, "train_steps": 40, "batch_size": 32}
    result = psruntime.train(__main__, 1, 1, checkpoint_dir="run", record="r.jsonl", log_dir="logs", **flags)
    saved = tf.train.load_checkpoint(result.checkpoint)
    print("RESULT", json.dumps([result.global_step, result.metrics, int(saved.get_tensor("global_step"))]))
    print("PARAMS", json.loads(open("r-0.jsonl").readline())["params"])
    try:
        psruntime.train(__main__, 1, 1, log_dir="again")
    except psruntime.errors.UsageError as error:
        print("ERROR", error)
"""
CELLS = """
import linecache, sys, __main__
for number, cell in enumerate({cells!r}):
    name = f"cell-{{number}}.py"
    linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
    exec(compile(cell, name, "exec"), globals())
try:
    psruntime.train(__main__, 1, 1, checkpoint_dir="run", train_steps=10**9, set={{"lr": 1e-4}})
except KeyboardInterrupt:
    print("INTERRUPTED")
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_program_trains_its_own_functions(commands: Commands) -> None:
    (commands.folder / "program.py").write_text(MODEL + PROGRAM)
    job = commands.start(sys.executable, "program.py")
    out, err = job.communicate(timeout=500)
    assert job.returncode == 0, err
    (line,) = re.findall("^RESULT (.*)$", out, re.MULTILINE)
    step, metrics, saved = json.loads(line)
    assert step == saved == 40
    assert f"held out, at global step 40: loss {metrics['loss']:.4f}" in out
    (logged,) = re.findall(
        r" evaluation global_step=40 loss=(\S+)", (commands.folder / "logs/worker-0.log").read_text()
    )
    assert float(logged) == metrics["loss"] and len(logged) > 8
    assert "PARAMS lr=0.05\n" in out
    where = f"model_fn of psruntime_main (mode train) failed at {commands.folder}/program.py:21: KeyError: "
    assert f"ERROR {where}'lr; it is given with --set lr=VALUE' (worker-0 ended with code 2; its log is again" in out
    assert not commands.running()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_interrupt_of_cells_stops_the_job_in_good_order(commands: Commands) -> None:
    job = commands.start(sys.executable, "-c", CELLS.format(cells=[MODEL]))
    folder = commands.folder / "run"
    poll_until(lambda: (folder / "checkpoint").exists(), 300, "the first checkpoint, of step 0")
    job.send_signal(signal.SIGINT)
    out, err = job.communicate(timeout=300)
    assert job.returncode == 0 and "INTERRUPTED\n" in out, err
    assert "stopping the job in good order" in out and "Traceback" not in err
    assert not commands.running()
