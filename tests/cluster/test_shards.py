"""Data shards with real processes: what each epoch has read, while workers are killed, and where a job goes on."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from psruntime.core.accounting.saved_state import SUFFIX
from psruntime.observe.rounds_log import records_of
from tests.support.cluster import Cluster, Zygote, cluster, replayed
from tests.support.polling import poll_until

pytestmark = pytest.mark.cluster

LONG = {mode: pytest.param(mode, marks=pytest.mark.long) for mode in ("async", "bounded", "sync")}

MODEL = "--model=tests.cluster.shard_models"
EXAMPLES, SIZE, BATCH = 1437, 64, 16  # as shard_models has them
SHARDS = -(-EXAMPLES // SIZE)
EPOCHS = 2
LONG_S = 120.0  # for a job of some seconds


def start(job: Cluster, index: int) -> Any:
    return job.start_worker(index, MODEL, f"--batch-size={BATCH}")


def settings(folder: Path, mode: str, **more: Any) -> dict[str, Any]:
    common = {"mode": mode, "ps": 2, "min_workers": 3, "epochs": EPOCHS, "checkpoint_dir": folder / "checkpoints"}
    if mode == "sync":
        common["rounds_log"] = folder / "rounds.jsonl"
    if mode == "bounded":
        common["bound"] = 1
    return {**common, "save_steps": 10, **more}


def newest(folder: Path) -> Path:
    """The newest checkpoint, as the prefix of its files."""
    found = [path for path in (folder / "checkpoints").glob(f"*{SUFFIX}") if re.search(r"-\d+\.state", path.name)]
    newest = max(found, key=lambda path: int(path.name.removesuffix(SUFFIX).rpartition("-")[2]))
    return Path(str(newest).removesuffix(SUFFIX))


def position(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(Path(f"{newest(folder)}{SUFFIX}").read_text())
    return dict(state["position"])


def counts(folder: Path) -> list[float]:
    """How often each example was in an applied update, as the ps counted."""
    import tensorflow.compat.v1 as tf1

    found: list[float] = tf1.train.load_checkpoint(str(newest(folder))).get_tensor("counts").tolist()
    return found


def in_rounds(folder: Path) -> Counter[tuple[int, ...]]:
    """(epoch, begin, end, number of the batch) -> the rounds that it was in and the variables hold."""
    rounds: list[dict[str, Any]] = []
    for record in records_of(folder / "rounds.jsonl"):
        if record["record"] == "prepared":
            rounds = [each for each in rounds if each["global_step"] <= record["global_step"]]
        elif record["record"] == "round":
            rounds.append(record)
    return Counter(tuple(batch) for each in rounds for part in each["parts"] for batch in part["shards"])


def ranges_in_rounds(folder: Path) -> set[tuple[int, ...]]:
    """(epoch, begin, end) of which all batches are in the variables."""
    batches = in_rounds(folder)
    found = {batch[:3] for batch in batches}
    return {(e, b, end) for e, b, end in found if all((e, b, end, n) in batches for n in range(-(-(end - b) // BATCH)))}


def all_ranges() -> set[tuple[int, ...]]:
    begins = range(0, EXAMPLES, SIZE)
    return {(epoch, begin, min(EXAMPLES, begin + SIZE)) for epoch in range(1, EPOCHS + 1) for begin in begins}


def handed_out_again(job: Cluster) -> list[tuple[int, int]]:
    """The ranges of `shard_again` in the log of ps 0."""
    lines = [line for proc in job.procs if proc.name.startswith("ps-0") for line in proc.text.splitlines()]
    facts = [re.search(r"shard_again .*begin=(\d+) end=(\d+)", line) for line in lines]
    return [(int(found.group(1)), int(found.group(2))) for found in facts if found]


def wait_for_shards(job: Cluster, epoch: int, done: int) -> None:
    def reached() -> bool:
        shards = job.status().shards
        return shards is not None and (shards.epoch, shards.done) >= (epoch, done)

    poll_until(reached, LONG_S, f"{done} shards of epoch {epoch}")


def check(folder: Path, mode: str, epochs: int, again: list[tuple[int, int]]) -> None:
    """Every example was counted in every epoch; what was counted more often was handed out again."""
    twice = {i for begin, end in again for i in range(begin, end)}
    if mode != "sync":
        found = counts(folder)
        assert min(found) >= epochs
        assert {i for i, count in enumerate(found) if count > epochs} <= twice
        return
    batches = in_rounds(folder)
    for epoch in range(1, epochs + 1):
        for begin in range(0, EXAMPLES, SIZE):
            end = min(EXAMPLES, begin + SIZE)
            for number in range(-(-(end - begin) // BATCH)):
                times = batches[(epoch, begin, end, number)]
                assert times == 1 or (times > 1 and (begin, end) in again), (epoch, begin, number, times)


def assert_replayed(zygote: Zygote, folder: Path) -> None:
    """But for `counts`, whose loss is no mean over the examples."""
    flags = (MODEL, f"--checkpoint-dir={folder / 'checkpoints'}", "--min-workers=3", "--tolerance=10")
    outcome = replayed(zygote, folder, folder / "rounds.jsonl", dict.fromkeys(range(3), BATCH), *flags)
    differences = {name: each for name, each in outcome["differences"].items() if not name.startswith("counts")}
    assert len(differences) > 2 and max(differences.values()) <= 1e-5
    assert outcome["rounds"][1] - outcome["rounds"][0] >= 20


@pytest.mark.long  # quick: core/coordinator/test_data_shards.py, graph/loop/test_shard_steps.py
@pytest.mark.parametrize("mode", ["async", "bounded", "sync"])
def test_without_faults_each_example_of_each_epoch_is_counted_once(mode: str, zygote: Zygote, tmp_path: Path) -> None:
    with cluster(zygote, tmp_path, **settings(tmp_path, mode)) as job:
        for index in range(3):
            start(job, index)
        assert set(job.wait_all(LONG_S).values()) == {0}
        assert handed_out_again(job) == []
        assert job.ps[0].text.count(f" epoch number=1 examples={EXAMPLES} handed_out_again=0") == 1
    check(tmp_path, mode, EPOCHS, [])
    assert position(tmp_path) == {"epoch": EPOCHS + 1, "done": [], "examples": EXAMPLES, "size": SIZE}


@pytest.mark.long  # quick: core/coordinator/test_data_shards.py, graph/loop/test_shard_steps.py
@pytest.mark.parametrize("mode", ["bounded", "sync"])
def test_what_killed_workers_had_begun_is_read_by_others(mode: str, zygote: Zygote, tmp_path: Path) -> None:
    with cluster(zygote, tmp_path, **settings(tmp_path, mode)) as job:
        workers = [start(job, index) for index in range(3)]
        wait_for_shards(job, 1, 6)
        workers[1].kill()
        start(job, 1)
        wait_for_shards(job, 2, 4)
        workers[2].kill()
        codes = job.wait_all(LONG_S)
        assert codes.pop("worker-1") == codes.pop("worker-2") == -signal.SIGKILL
        assert set(codes.values()) == {0}
        again = handed_out_again(job)
        assert again, "a worker that is killed holds something"
    check(tmp_path, mode, EPOCHS, again)
    if mode == "sync":
        assert_replayed(zygote, tmp_path)


@pytest.mark.parametrize("mode", [*LONG.values()])
def test_when_a_ps_is_lost_what_its_checkpoint_lacks_is_read_again(mode: str, zygote: Zygote, tmp_path: Path) -> None:
    with cluster(zygote, tmp_path, **settings(tmp_path, mode)) as job:
        for index in range(3):
            start(job, index)
        wait_for_shards(job, 2, 4)
        job.ps[1].kill()
        job.start_ps(1)
        poll_until(lambda: job.ps[0].text.count(" position ") == 2, LONG_S, "the position of the checkpoint")
        codes = job.wait_all(LONG_S)
        assert codes.pop("ps-1") == -signal.SIGKILL
        assert set(codes.values()) == {0}
    if mode != "sync":
        assert min(counts(tmp_path)) >= EPOCHS
    else:
        assert ranges_in_rounds(tmp_path) == all_ranges()
        assert_replayed(zygote, tmp_path)


@pytest.mark.parametrize("mode", [LONG["async"], LONG["sync"]])
def test_a_job_that_was_stopped_goes_on_where_its_checkpoint_is(mode: str, zygote: Zygote, tmp_path: Path) -> None:
    with cluster(zygote, tmp_path, **settings(tmp_path, mode)) as job:
        for index in range(3):
            start(job, index)
        wait_for_shards(job, 1, 8)
        job.ps[0].signal(signal.SIGTERM)
        job.wait_all(LONG_S)
    stopped = position(tmp_path)
    done = sum(end - first for first, end in stopped["done"])
    assert stopped["epoch"] == 1 and done >= 6, "all but what was under way"
    again = tmp_path / "again"
    again.mkdir()
    with cluster(zygote, again, **settings(tmp_path, mode)) as job:
        for index in range(3):
            start(job, index)
        line = job.ps[0].wait_for(" position ")
        assert f"epoch=1 done={done} of={SHARDS}" in line
        assert set(job.wait_all(LONG_S).values()) == {0}
    if mode == "async":
        found = counts(tmp_path)
        assert min(found) >= EPOCHS and sum(found) <= EPOCHS * EXAMPLES + 3 * 3 * SIZE, "three shards a worker"
    else:
        assert ranges_in_rounds(tmp_path) == all_ranges()


@pytest.mark.long
def test_a_worker_whose_data_differ_is_refused(zygote: Zygote, tmp_path: Path) -> None:
    with cluster(zygote, tmp_path, min_workers=1, epochs=1) as job:
        start(job, 0)
        wait_for_shards(job, 1, 1)
        (tmp_path / "other.py").write_text(
            "from tests.cluster import shard_models\n"
            "from tests.cluster.shard_models import model_fn\n"
            "def input_fn(context):\n"
            "    shard_models.SIZE = 32\n"
            "    return shard_models.input_fn(context)\n"
        )
        other = job.start_worker(1, "--model=other", f"--batch-size={BATCH}")
        assert other.wait() == 2
        assert "context.shards has 1437 examples in shards of 32 here, and 1437 in shards of 64" in other.text
        job.wait_all(LONG_S)
