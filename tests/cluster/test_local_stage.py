"""A job with a local stage: what the ps hold after it is the mean of what each worker has come to by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psruntime.observe.rounds_log import rounds_of
from tests.cluster.test_rounds import SIZES, replay, start, write_model
from tests.support.checkpoint_list import keep_from
from tests.support.cluster import Cluster, Zygote, cluster
from tests.support.polling import poll_until

pytestmark = [pytest.mark.cluster, pytest.mark.optimised]

WORKERS = 3
TOLERANCE = 1e-5


def run(zygote: Zygote, folder: Path, model: str, local: int, more: int, **settings: Any) -> Any:
    """A job of three workers and two ps, with so many global steps in its local stage, and more in rounds."""
    return cluster(
        zygote, folder, ps=2, min_workers=WORKERS, schedule=f"local:{local}, sync", train_steps=local + more,
        save_steps=1, keep=1000, checkpoint_dir=folder / "checkpoints", rounds_log=folder / "rounds.jsonl",
        slice_bytes=64, **settings,
    )  # fmt: skip


def check(zygote: Zygote, folder: Path, name: str, local: int, workers: list[int]) -> None:
    """The checkpoint at the end of the stage has the mean of these workers' variables by their examples, and slots as
    at the beginning; the rounds after it are those of one process."""
    import tensorflow.compat.v1 as tf1

    from psruntime.model import load_model

    model, checkpoints = load_model(name), folder / "checkpoints"
    stage, *rounds = rounds_of(folder / "rounds.jsonl")
    assert stage["local"] and stage["round"] == stage["global_step"] == local
    assert rounds and not any("local" in record for record in rounds)
    assert [part["worker"] for part in stage["parts"]] == workers
    first, after = (tf1.train.load_checkpoint(str(checkpoints / f"model.ckpt-{step}")) for step in (0, local))
    total = sum(part["examples"] for part in stage["parts"])
    mean: dict[str, Any] = {}
    for part in stage["parts"]:
        values, examples = come_to(model, part["worker"], str(checkpoints / "model.ckpt-0"), local, part["batch"])
        assert examples == part["examples"]
        for variable, value in values.items():
            mean[variable] = mean.get(variable, 0) + value * (examples / total)
    for variable in sorted(first.get_variable_to_shape_map()):
        if variable in mean:
            assert not np.array_equal(first.get_tensor(variable), mean[variable])
            largest = np.abs(mean[variable]).max()
            np.testing.assert_allclose(after.get_tensor(variable), mean[variable], rtol=0, atol=TOLERANCE * largest)
        elif variable != "global_step":
            np.testing.assert_array_equal(after.get_tensor(variable), first.get_tensor(variable), err_msg=variable)
    assert after.get_tensor("global_step") == local
    keep_from(checkpoints, local)
    outcome = replay(zygote, folder, name)
    assert outcome["rounds"] == [local + 1, rounds[-1]["round"]]
    assert outcome["bits_differ"] == {}, outcome


def come_to(model: Any, index: int, begin: str, steps: int, last_batch: int) -> tuple[dict[str, Any], int]:
    """(the variables of a worker that trains by itself from a checkpoint, in plain TensorFlow; the examples of it)."""
    import tensorflow.compat.v1 as tf1

    from psruntime.graph.input.input_stream import InputStream
    from psruntime.model import Context

    inputs = InputStream(model, Context("train", index, WORKERS, SIZES[index], "", index))
    with tf1.Graph().as_default() as graph:
        features, labels, batch = inputs.layout.placeholders()
        spec = model.model_fn(features, labels, "train")
        rate = tf1.placeholder(tf1.float32, [])
        update = spec.optimizer(rate).minimize(spec.loss)
        variables = {v.op.name: v for v in tf1.trainable_variables()}
        saver, init = tf1.train.Saver(variables), tf1.global_variables_initializer()
    examples = 0
    with tf1.Session(graph=graph) as session:
        session.run(init)
        saver.restore(session, begin)
        drawn = [inputs.draw_endlessly() for _ in range(last_batch + 1)][-steps:]
        for step, arrays in enumerate(drawn):
            examples += inputs.examples(arrays)
            session.run(update, {rate: spec.learning_rate(step), **dict(zip(batch, arrays, strict=True))})
        values: dict[str, Any] = session.run(variables)
    inputs.close()
    return values, examples


def finish(job: Cluster, killed: set[str]) -> None:
    codes = job.wait_all()
    assert {name for name, code in codes.items() if code} <= killed, codes
    for index in range(2):
        assert "balanced=True" in job.latest("ps", index).wait_for(" ledger ")
    assert "Traceback" not in "".join(proc.text for proc in job.procs)


@pytest.mark.long
def test_the_mean_by_examples(zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    model = write_model(tmp_path, "local_mean", optimizer="adam", table=True)
    with run(zygote, tmp_path, model, local=20, more=10) as job:
        for index in range(WORKERS):
            start(job, index, model)
        finish(job, set())
    check(zygote, tmp_path, model, 20, [0, 1, 2])


@pytest.mark.long
def test_the_mean_of_those_who_are_left(zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ps is killed while all train by themselves, and a worker while they do so again."""
    monkeypatch.syspath_prepend(str(tmp_path))
    model = write_model(tmp_path, "local_left", optimizer="momentum", table=True)
    local = 500
    with run(zygote, tmp_path, model, local=local, more=10, lease_s=3) as job:
        workers = [start(job, index, model) for index in range(WORKERS)]
        for worker in workers:
            worker.wait_for(" local_began ")
        job.ps[1].kill()
        job.start_again(job.ps[1])
        begun = lambda: all(worker.text.count(" local_began ") == 2 for worker in workers)  # noqa: E731
        poll_until(begun, 60, "all to begin anew")
        workers[2].kill()
        finish(job, {"ps-1", "worker-2"})
    check(zygote, tmp_path, model, local, [0, 1])
