"""The scripts of docs/migrating.md, as processes: before the move, after it, and their checkpoints in between."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psruntime import tf1
from tests.support import docs
from tests.support.cluster import Proc, Zygote, cluster
from tests.support.docs import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.optimised]

MIGRATING = "docs/migrating.md"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """train.npz and eval.npz: which of ten prototypes an x is near to."""
    folder, random = tmp_path / "data", np.random.RandomState(0)
    folder.mkdir()
    prototypes = random.rand(10, 64)
    for mode, rows in (("train", 500), ("eval", 100)):
        y = random.randint(10, size=rows)
        x = prototypes[y] + random.normal(0, 0.3, [rows, 64])
        np.savez(folder / f"{mode}.npz", x=x.astype(np.float32), y=y)
    return folder


@contextmanager
def stock(zygote: Zygote, folder: Path, *starts: tuple[str, list[str]]) -> Iterator[list[Proc]]:
    """Processes of stock TensorFlow, whose servers never end: they are killed.  starts: (name, argv) each."""
    procs = [zygote.start(name, ["script", *argv], folder / f"{name}.log", []) for name, argv in starts]
    try:
        yield procs
    finally:
        for proc in procs:
            if proc.code is None:
                proc.kill()


def free_addresses(count: int) -> list[str]:
    with ExitStack() as sockets:
        probes = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]


def write(folder: Path, *files: str) -> list[Path]:
    for file in files:
        (folder / file).write_text(docs.block(MIGRATING, file).text)
    return [folder / file for file in files]


def saved(folder: Path) -> dict[str, Any]:
    """All tensors of the newest checkpoint."""
    reader = tf1.train.load_checkpoint(str(folder))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def trained(zygote: Zygote, module: Path, data: Path, run: Path, train_steps: int) -> tuple[str, float]:
    """A module, as a job from the checkpoints in `run`: what the worker says, and its held-out accuracy."""
    with cluster(zygote, module.parent, checkpoint_dir=run, train_steps=train_steps) as job:
        worker = job.start_worker(0, f"--model={module.stem}", f"--data-dir={data}")
        assert set(job.wait_all().values()) == {0}
        return worker.text, float(worker.wait_for("held out").split("accuracy ")[1].split(",")[0])


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_tf1_script_moves_by_both_routes_and_takes_its_checkpoints_along(
    zygote: Zygote, tmp_path: Path, data: Path
) -> None:
    run = tmp_path / "run"
    script, model = write(tmp_path, "train.py", "my_model.py")

    def train_there(last_step: int) -> None:
        ps, worker = free_addresses(2)
        flags = [f"--data_dir={data}", f"--checkpoint_dir={run}", f"--ps_hosts={ps}", f"--worker_hosts={worker}"]
        argv = [str(script), f"--last_step={last_step}", *flags]
        with stock(zygote, tmp_path, ("ps", [*argv, "--job_name=ps"]), ("worker", argv)) as (_, proc):
            assert proc.wait() == 0, proc.text
        assert saved(run)["global_step"] == last_step

    train_there(100)

    (diff,) = [b for b in docs.blocks(ROOT / MIGRATING) if b.check == "diff of train.py"]
    after = tmp_path / "moved.py"
    after.write_text(docs.moved(script.read_text(), diff.text))
    (tmp_path / "job").mkdir()
    with cluster(zygote, tmp_path / "job", ps=2) as job:
        hosts = [f"--ps_hosts={job.coordinator},127.0.0.1:1", "--worker_hosts=127.0.0.1:0"]
        moved = job.start_script(0, after, f"--data_dir={data}", f"--checkpoint_dir={run}", "--last_step=200", *hosts)
        assert set(job.wait_all().values()) == {0}
        assert " restored global_step=100" in moved.text
    halfway = saved(run)
    assert halfway["global_step"] == 200

    said, accuracy = trained(zygote, model, data, run, 300)
    assert " restored global_step=200" in said and accuracy > 0.8
    end = saved(run)
    assert end["global_step"] == 300 and halfway.keys() <= end.keys()
    assert (end["hidden/kernel/Adagrad"] >= halfway["hidden/kernel/Adagrad"]).all()
    assert not np.array_equal(end["norm/moving_mean"], halfway["norm/moving_mean"])

    train_there(320)
    back = saved(run)
    assert (back["hidden/kernel/Adagrad"] >= end["hidden/kernel/Adagrad"]).all()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_strategy_moves_and_its_checkpoint_is_converted(zygote: Zygote, tmp_path: Path, data: Path) -> None:
    old, run = tmp_path / "old", tmp_path / "run"
    script, convert, model = write(tmp_path, "strategy.py", "convert.py", "keras_model.py")
    roles = ("chief", "ps", "worker")
    addresses = {role: [address] for role, address in zip(roles, free_addresses(3), strict=True)}
    starts = [(role, [str(started_as(role, addresses, script, data, old))]) for role in roles]
    with stock(zygote, tmp_path, *starts) as (chief, *_):
        assert chief.wait(120) == 0, chief.text
    assert "epoch 1, loss" in chief.text

    argv = ["script", str(convert), str(old), str(run), str(data), "40"]
    converting = zygote.start("convert", argv, tmp_path / "convert.log", [str(tmp_path)])
    assert converting.wait() == 0, converting.text
    there, here = saved(old), saved(run)
    pairs = {
        "hidden/kernel": "model/layer_with_weights-0/kernel",
        "hidden/kernel/Adagrad": "optimizer/_variables/1",
        "norm/moving_variance": "model/layer_with_weights-1/moving_variance",
        "logits/bias": "model/layer_with_weights-2/bias",
    }
    for name, key in pairs.items():
        np.testing.assert_array_equal(here[name], there[f"{key}/.ATTRIBUTES/VARIABLE_VALUE"], err_msg=name)
    assert here["global_step"] == 40
    assert "begins at its initializer" not in converting.text

    said, accuracy = trained(zygote, model, data, run, 240)
    assert " restored global_step=40" in said and " unmoved " not in said and accuracy > 0.8


def started_as(role: str, addresses: dict[str, list[str]], script: Path, data: Path, checkpoints: Path) -> Path:
    """A script that runs `script` with the environment of this role."""
    task = {"cluster": addresses, "task": {"type": role, "index": 0}}
    settings = {"TF_CONFIG": json.dumps(task), "DATA_DIR": str(data), "CHECKPOINT_DIR": str(checkpoints)}
    settings["GRPC_FAIL_FAST"] = (
        "use_caller"  # as TensorFlow's guide to the strategy sets it: the others may start later
    )
    path = script.parent / f"{role}.py"
    path.write_text(
        f"import os, runpy\nos.environ.update({settings!r})\nrunpy.run_path({str(script)!r}, run_name='__main__')\n"
    )
    return path
