"""Rounds with shares: a slow worker computes less of each, the sum stays, and every round is exact."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from psruntime.observe.rounds_log import records_of
from tests.support.cluster import Zygote, cluster, replayed
from tests.support.polling import poll_until

pytestmark = pytest.mark.cluster

TOLERANCE = 1e-5  # relative to the largest entry of a variable
NEVER = 10_000_000  # steps: the job is stopped
OWN = 16  # batch size of every worker
WORKERS, SLOW = (0, 1, 2), 2
EXAMPLE_S = 0.004  # what an example takes, without using a processor; on the slow worker three times as long

MODEL = """
import time
import tensorflow.compat.v1 as tf1
from tests.cluster import round_models

def pause(x):
    time.sleep(len(x) * {example_s})
    return x

def model_fn(features, labels, mode):
    x, ids = features
    slow = tf1.numpy_function(pause, [x], tf1.float32)
    slow.set_shape(x.shape)
    return round_models.make("momentum", table=True)((slow, ids), labels, mode)

input_fn = round_models.input_fn
"""


def write_model(folder: Path, name: str, example_s: float) -> str:
    (folder / f"{name}.py").write_text(MODEL.format(example_s=example_s))
    return name


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return [record for record in records_of(folder / "rounds.jsonl") if record["record"] == "round"]


def latest(folder: Path) -> list[dict[str, Any]]:
    """The parts of the last round; none before the first."""
    return rounds_of(folder)[-1]["parts"] if rounds_of(folder) else []


def follow_the_speeds(parts: list[dict[str, Any]]) -> bool:
    """Whether all workers are in the round, and the slow one computes a third of what each other one does, about."""
    sizes = {part["worker"]: part["size"] for part in parts}
    return set(sizes) == set(WORKERS) and all(2 <= sizes[w] / sizes[SLOW] <= 4.5 for w in WORKERS if w != SLOW)


@pytest.mark.long
def test_shares_follow_the_speeds_and_rounds_stay_exact(zygote: Zygote, tmp_path: Path) -> None:
    models = [write_model(tmp_path, "even", EXAMPLE_S), write_model(tmp_path, "uneven", 3 * EXAMPLE_S)]
    settings = {
        "mode": "sync", "ps": 2, "min_workers": len(WORKERS), "train_steps": NEVER, "batch_policy": "throughput",
        "checkpoint_dir": tmp_path / "checkpoints", "rounds_log": tmp_path / "rounds.jsonl",
    }  # fmt: skip
    with cluster(zygote, tmp_path, **settings) as job:

        def start(worker: int) -> Any:
            return job.start_worker(worker, f"--model={models[worker == SLOW]}", f"--batch-size={OWN}")

        started = [start(worker) for worker in WORKERS]
        poll_until(lambda: follow_the_speeds(latest(tmp_path)), 90, "shares that follow the speeds")
        before = {part["incarnation"] for part in latest(tmp_path)}
        started[1].kill()
        started[1] = start(1)

        def are_back() -> bool:
            parts = latest(tmp_path)
            return follow_the_speeds(parts) and {part["incarnation"] for part in parts} != before

        poll_until(are_back, 90, "shares that follow the speeds, with the worker that was started again")
        known = {member.index: member.share for member in job.status().members if member.role == "worker"}
        assert sum(known.values()) == OWN * len(WORKERS)
        job.ps[0].signal(signal.SIGTERM)
        assert [worker.wait() for worker in started] == [75] * len(WORKERS)
        assert [ps.wait() for ps in job.ps] == [128 + signal.SIGTERM, 75]
        assert all("balanced=True" in ps.text for ps in job.ps)
    assert " shares round=" in job.ps[0].text
    records = records_of(tmp_path / "rounds.jsonl")
    void = {record["round"] for record in records if record["record"] == "void"}
    for record in rounds_of(tmp_path):
        if record["round"] not in void:
            assert sum(part["size"] for part in record["parts"]) == OWN * len(record["parts"]), record
    sizes = dict.fromkeys(WORKERS, OWN)
    flags = [f"--model={models[0]}", f"--checkpoint-dir={tmp_path / 'checkpoints'}"]
    outcome = replayed(zygote, tmp_path, tmp_path / "rounds.jsonl", sizes, *flags)
    assert outcome["rounds"][0] == 1 and outcome["bits_differ"] == {}, outcome
