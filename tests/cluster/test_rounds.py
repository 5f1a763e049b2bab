"""Sync mode with real processes: every round is the exact update of the joint batch, whoever comes and goes."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from psruntime.observe.records import read_records, standing
from psruntime.observe.rounds_log import records_of, rounds_of, workers_of
from tests.simulation.round_records import odd_record
from tests.support.cluster import Cluster, Zygote, cluster, replayed
from tests.support.polling import poll_until
from tests.support.selection import long_but

pytestmark = [pytest.mark.cluster, pytest.mark.optimised]

ROUNDS = 50
TOLERANCE = 1e-5  # relative to the largest entry of a variable
NEVER = 10_000_000  # steps: the job is stopped
SIZES = {0: 5, 1: 12, 2: 8}  # worker index -> its batch size


def write_model(folder: Path, name: str, **settings: Any) -> str:
    """A module with a model of round_models, next to the logs of the test."""
    arguments = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    (folder / f"{name}.py").write_text(
        "from tests.cluster.round_models import input_fn, make\n"
        f"model_fn = make({arguments})\n"
        "__all__ = ['input_fn', 'model_fn']\n"
    )
    return name


def start(job: Cluster, index: int, model: str, *flags: str) -> Any:
    return job.start_worker(index, f"--model={model}", f"--batch-size={SIZES[index]}", *flags)


def replay(zygote: Zygote, folder: Path, model: str, local_steps: int = 1, *more: str) -> dict[str, Any]:
    flags = [f"--model={model}", f"--checkpoint-dir={folder / 'checkpoints'}", f"--local-steps={local_steps}"]
    return replayed(zygote, folder, folder / "rounds.jsonl", SIZES, *flags, *more)


def parts_of(folder: Path) -> list[list[int]]:
    """The workers of each closed round."""
    records = records_of(folder / "rounds.jsonl")
    return [[part["worker"] for part in record["parts"]] for record in records if record["record"] == "round"]


def accepted(job: Cluster) -> list[dict[int, list[int]]]:
    """Of each ps at its end: worker index -> contributions that its buckets accepted, the fewest and the most."""
    found = []
    for ps in job.ps:
        line = re.search(r'accepted="([^"]*)"', ps.wait_for(" ledger "))
        assert line and "balanced=True" in ps.text
        numbers = re.findall(r"worker (\d+): (\d+) to (\d+)", line.group(1))
        found.append({int(worker): [int(low), int(high)] for worker, low, high in numbers})
    return found


ALONE, TWICE = {"plan": "per-variable"}, {"local_steps": 2}
CASES = {  # together each optimizer with and without a table, each number of workers and ps, sliced and not, clipped
    "sgd": ({"optimizer": "sgd", "table": False, "clip_norm": 0.3}, 3, 2, 64, ALONE),
    "sgd, table": ({"optimizer": "sgd", "table": True}, 2, 1, 1 << 20, {}),
    "momentum": ({"optimizer": "momentum", "table": False}, 2, 1, 64, {}),
    "momentum, table": ({"optimizer": "momentum", "table": True, "clip_norm": 0.5}, 3, 2, 64, TWICE),
    "adam": ({"optimizer": "adam", "table": False, "clip_norm": 0.3}, 2, 2, 1 << 20, TWICE | ALONE),
    "adam, table": ({"optimizer": "adam", "table": True, "clip_norm": 0.5}, 3, 2, 64, ALONE),
    "adagrad": ({"optimizer": "adagrad", "table": False}, 3, 1, 1 << 20, {}),
    "adagrad, table": ({"optimizer": "adagrad", "table": True, "clip_value": 0.05}, 2, 2, 64, TWICE),
    "rmsprop": ({"optimizer": "rmsprop", "table": False, "clip_value": 0.05}, 2, 2, 64, ALONE),
    "rmsprop, table": ({"optimizer": "rmsprop", "table": True}, 3, 1, 1 << 20, ALONE),
    "ftrl": ({"optimizer": "ftrl", "table": False}, 3, 2, 1 << 20, {}),
    "ftrl, table": ({"optimizer": "ftrl", "table": True, "clip_norm": 0.5}, 2, 2, 64, {}),
}


@pytest.mark.parametrize("case", long_but(["adagrad, table"], CASES))
def test_fifty_rounds_are_those_of_one_process(case: str, zygote: Zygote, tmp_path: Path) -> None:
    settings, workers, num_ps, slice_bytes, more = CASES[case]
    model = write_model(tmp_path, "exact_" + re.sub(r"\W", "_", case), **settings)
    job_settings = {
        "mode": "sync", "ps": num_ps, "min_workers": workers, "train_steps": ROUNDS, "slice_bytes": slice_bytes,
        "checkpoint_dir": tmp_path / "checkpoints", "rounds_log": tmp_path / "rounds.jsonl", **more,
    }  # fmt: skip
    with cluster(zygote, tmp_path, **job_settings) as job:
        for index in range(workers):
            start(job, index, model)
        assert set(job.wait_all().values()) == {0}
        assert accepted(job) == [{index: [ROUNDS, ROUNDS] for index in range(workers)}] * num_ps
    assert parts_of(tmp_path) == [list(range(workers))] * ROUNDS
    outcome = replay(zygote, tmp_path, model, more.get("local_steps", 1))
    assert outcome["rounds"] == [1, ROUNDS]
    assert outcome["bits_differ"] == {} and outcome["may_differ"] == [], outcome


@pytest.mark.long
def test_rounds_go_on_exactly_on_another_number_of_ps(zygote: Zygote, tmp_path: Path) -> None:
    """Three jobs on one folder, with 2, 3 and 1 ps; each worker computes on two devices."""
    devices = "--devices=cpu:0,cpu:1"
    settings = {"optimizer": "adam", "table": True, "clip_norm": 0.5}
    model = write_model(tmp_path, "exact_resized", **settings)
    for number, num_ps in enumerate([2, 3, 1], start=1):
        job_settings = {
            "mode": "sync", "ps": num_ps, "min_workers": 2, "train_steps": 20 * number, "slice_bytes": 64,
            "checkpoint_dir": tmp_path / "checkpoints", "rounds_log": tmp_path / "rounds.jsonl",
        }  # fmt: skip
        folder = tmp_path / f"ps-{num_ps}"
        folder.mkdir()
        write_model(folder, model, **settings)
        with cluster(zygote, folder, **job_settings) as job:
            for index in (0, 1):
                start(job, index, model, devices)
            assert set(job.wait_all().values()) == {0}
            told = accepted(job)  # a bucket that stayed as it was goes on counting, another begins anew
            assert all(low >= 20 and high <= 20 * number for of_ps in told for low, high in of_ps.values()), told
            assert [set(of_ps) for of_ps in told] == [{0, 1}] * num_ps
    outcome = replay(zygote, tmp_path, model, 1, devices)
    assert outcome["rounds"] == [1, 60]
    assert outcome["bits_differ"] == {}, outcome


@pytest.mark.long
def test_rounds_stay_exact_while_workers_come_go_and_die(zygote: Zygote, tmp_path: Path) -> None:
    model = write_model(tmp_path, "exact_elastic", optimizer="adam", table=True, clip_norm=0.5)
    job_settings = {
        "mode": "sync", "ps": 2, "min_workers": 2, "train_steps": NEVER, "round_warn_s": 1,
        "checkpoint_dir": tmp_path / "checkpoints", "rounds_log": tmp_path / "rounds.jsonl",
    }  # fmt: skip
    with cluster(zygote, tmp_path, **job_settings) as job:
        alone = start(job, 0, model)
        alone.wait_for(" joined ")
        assert job.status().reason == "waiting for workers: 1 of at least 2 are there"
        other = start(job, 1, model)
        job.wait_for_step(20)

        late = start(job, 2, model)
        poll_until(lambda: [0, 1, 2] in parts_of(tmp_path), 30, "a round with all three")
        late.signal(signal.SIGTERM)
        assert late.wait() == 128 + signal.SIGTERM
        go_on(job)

        other.kill()  # the round waits for its lease to end, and says so
        job.ps[0].wait_for(" slow_round attempt=")
        go_on(job)
        poll_until(lambda: parts_of(tmp_path)[-1] == [0], 30, "rounds of the only one left")
        again = start(job, 1, model)
        poll_until(lambda: parts_of(tmp_path)[-1] == [0, 1], 30, "rounds of both again")

        alone.kill()  # the chief
        poll_until(lambda: parts_of(tmp_path)[-1] == [1], 30, "rounds without it")
        job.ps[0].signal(signal.SIGTERM)
        assert again.wait() == 75
        assert [ps.wait() for ps in job.ps] == [128 + signal.SIGTERM, 75]
        assert all("balanced=True" in ps.text for ps in job.ps)
    log = job.ps[0].text
    assert re.search(r'slow_round attempt=\d+ waited_s=\S+ reason="round \d+ waits for worker 1"', log)
    assert len(re.findall(r" void round=", log)) >= 1
    assert log.count(" view number=") == 1, "nobody lost the view"
    assert odd_record(list(records_of(tmp_path / "rounds.jsonl")), workers=3) is None
    began = {(r["worker"], r.get("began_at", 0)) for r in workers_of(tmp_path / "rounds.jsonl").values()}
    assert {index for index, step in began if not step} == {0, 1} and {i for i, step in began if step >= 20} == {1, 2}
    outcome = replay(zygote, tmp_path, model)
    found = re.search(r" over .* the newest checkpoint is of global step (\d+)", log)
    assert found and outcome["rounds"] == [1, int(found[1])]
    assert outcome["bits_differ"] == {}, outcome


SLOW = """
import time
import tensorflow.compat.v1 as tf1
from tests.cluster import round_models

def pause(x):
    time.sleep(0.3)
    return x

def model_fn(features, labels, mode):
    x, ids = features
    slow = tf1.numpy_function(pause, [x], tf1.float32)
    slow.set_shape(x.shape)
    return round_models.make("momentum", table=True, clip_norm=0.5)((slow, ids), labels, mode)

input_fn = round_models.input_fn
"""


@pytest.mark.long
def test_rounds_do_not_wait_for_a_backup_worker_and_stay_exact(zygote: Zygote, tmp_path: Path) -> None:
    """Of three workers one is slow: its gradients are late, unless another one is lost."""
    model = write_model(tmp_path, "exact_backup", optimizer="momentum", table=True, clip_norm=0.5)
    (tmp_path / "slow_backup.py").write_text(SLOW)
    job_settings = {
        "mode": "sync", "ps": 2, "min_workers": 3, "train_steps": NEVER, "backup_workers": 1,
        "checkpoint_dir": tmp_path / "checkpoints", "rounds_log": tmp_path / "rounds.jsonl",
    }  # fmt: skip

    def late() -> list[int]:
        return [r["worker"] for r in records_of(tmp_path / "rounds.jsonl") if r["record"] == "late"]

    with cluster(zygote, tmp_path, **job_settings) as job:
        quick = [start(job, index, model) for index in (0, 1)]
        slow = start(job, 2, "slow_backup", f"--record={tmp_path / 'record.jsonl'}")
        poll_until(lambda: late().count(2) >= 3, 60, "gradients of worker 2 that are late")
        assert len(parts_of(tmp_path)) > 2 * len(late()), "the others went on"
        quick[1].kill()  # it may be a member of the round
        go_on(job)
        again = start(job, 1, model)
        again.wait_for(" first_step ")
        go_on(job)
        job.ps[0].signal(signal.SIGTERM)
        assert [each.wait() for each in (quick[0], again, slow)] == [75, 75, 75]
        assert [ps.wait() for ps in job.ps] == [128 + signal.SIGTERM, 75]
        assert all("balanced=True" in ps.text for ps in job.ps)
        assert f"late={len(late())}" in job.ps[0].text
    records = read_records(tmp_path / "record.jsonl")
    assert sum(r.outcome == "late" for r in records) in (late().count(2) - 1, late().count(2)), (
        "it learns with the next"
    )
    contributed = {r.global_step for r in standing(records)}
    assert {
        r["round"] for r in rounds_of(tmp_path / "rounds.jsonl") if 2 in [p["worker"] for p in r["parts"]]
    } <= contributed
    sizes = {len(parts) for parts in parts_of(tmp_path)}
    assert sizes <= {1, 2} and 2 in sizes
    outcome = replay(zygote, tmp_path, model)
    assert outcome["bits_differ"] == {}, outcome


def go_on(job: Cluster) -> None:
    job.wait_for_step(job.status().global_step + 20)
