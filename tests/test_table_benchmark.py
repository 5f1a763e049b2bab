"""The benchmark of tables: what it is asked for, what it makes of its runs, and what a plot makes of that."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from benchmarks import embedding_tables, tables
from benchmarks.measured import Measured
from benchmarks.panels import figure_of
from benchmarks.peer_environment import ENVIRONMENTS, CannotBeMade, Environment
from benchmarks.processes import free_addresses, lines, processes
from benchmarks.ps_traffic import Told, largest_share
from benchmarks.table_data import BATCHES, Tables, drawn, parameters
from benchmarks.table_jobs import LAZY, TableRun, TableWork, called, peers_of, torchrec_environment, torchrec_job
from benchmarks.tables import beside, result_of, sizes, text_of

WORK = TableWork(Tables(26, 100_000, 16), "async", 2, 2, 100)


def run(rate: float, share: float | None = None) -> TableRun:
    return TableRun(Measured(rate, None, None, {"ps": 4.0, "worker": 600 / rate}), share)


def test_the_sizes_of_tables_are_read() -> None:
    assert sizes("26x100000x16,1x10x8x30") == [Tables(26, 100_000, 16), Tables(1, 10, 8, ids=30)]


@pytest.mark.parametrize("text", ["", "26", "26x16", "26x100x16x1x1", "26x0x16", "axbxc"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="tables x rows x width are needed"):
        sizes(text)


@pytest.mark.parametrize(("mode", "optimizer", "has"), [("async", "adagrad", True), ("sync", "adagrad", False),
                                                       ("async", "adam", False)])  # fmt: skip
def test_parameter_server_strategy_is_left_out_where_it_cannot_do_the_work(
    mode: str, optimizer: str, has: bool
) -> None:
    work = TableWork(Tables(26, 10, 16, optimizer=optimizer), mode, 1, 1, 100)
    assert peers_of(work, ["stock", "strategy"]) == ["stock", *(["strategy"] if has else [])]


def test_runs_are_compared_with_those_of_the_same_turn() -> None:
    pairs = beside([run(200.0, 1.02), run(300.0, 1.5), run(100.0, 1.04)], [run(100.0), None, run(50.0)])
    result = result_of(WORK, "stock", pairs, 3)
    assert result["ours"] == 15_000 and result["peer"] == 7_500 and result["ratio"] == 2.0
    assert result["runs"] == 2 and result["peer_failed"] == 1
    assert result["cpu_ms"]["ours"] == (7 + 10) / 2 and result["cpu_ms"]["peer"] == (10 + 16) / 2
    assert result["cpu_ms"]["spread"]["ratio"] == [10 / 7, 16 / 10]
    assert result["ps_share"] == [1.02, 1.04]


def test_a_result_can_be_drawn_and_has_a_line_for_each_peer() -> None:
    pairs = beside([run(200.0, 1.02)], [run(100.0)])
    each = [result_of(WORK, peer, pairs, 1) for peer in ("stock", "fused")]
    result: dict[str, Any] = {"workload": "embedding tables", "each": each}
    (panel,) = figure_of(result).panels
    assert [row.label for row in panel.rows] == ["ours beside stock", "ours beside fused"]
    lines = text_of(result).splitlines()
    assert lines[0] == str(WORK) and "beside stock" in lines[1] and "beside fused" in lines[3]
    assert lines[-1] == "  ours: largest share of a ps 1.020 to 1.020 times an even one"


def test_the_share_of_a_ps_is_of_what_moved_between_its_own_two_reports() -> None:
    before = {0: Told(10.0, 1000), 1: Told(12.0, 5000)}
    after = {0: Told(20.0, 2000), 1: Told(32.0, 11_000)}  # 100 and 300 bytes/s
    assert largest_share(before, after) == 1.5
    assert largest_share(before, {**after, 1: Told(32.0, None)}) is None


def test_peers_are_left_out_where_they_cannot_do_the_work_and_torchrec_is_called_synchronous() -> None:
    assert peers_of(WORK, ["torchrec"]) == ["torchrec"]
    assert peers_of(WORK.with_tables(optimizer="adam"), ["torchrec", "stock"]) == ["stock"]
    assert peers_of(WORK, ["tfra"]) == ["tfra"] and peers_of(replace(WORK, mode="sync"), ["tfra"]) == []
    assert peers_of(WORK.with_tables(optimizer="rowwise-adagrad"), ["tfra", "torchrec"]) == ["torchrec"]
    assert called(WORK, "torchrec") == "torchrec, synchronous" and called(WORK, "stock") == "stock"
    assert called(replace(WORK, mode="sync"), "torchrec") == "torchrec"


def an_environment(root: Path, *alone: str) -> Environment:
    return Environment("torchrec", ("torch==0",), alone, root)


def made(environment: Environment) -> Environment:
    """As `make` leaves it behind, without its packages."""
    environment.folder.mkdir()
    (environment.folder / ".ready").write_text("torch==0\n" + "\n".join(environment.alone))
    return environment


def test_an_environment_that_cannot_be_used_names_the_reason_and_the_command(tmp_path: Path) -> None:
    command = "'python -m benchmarks.peer_environment torchrec' makes it"
    environment = an_environment(tmp_path, "torchrec==1")
    assert environment.lacks() == f"the environment .venv-torchrec is not there, or not complete; {command}"
    assert made(environment).lacks() is None
    assert an_environment(tmp_path, "torchrec==2").lacks() == (
        f"the environment .venv-torchrec has other versions; {command}"
    )


def test_an_environment_that_cannot_be_made_is_one_line_and_is_not_used(tmp_path: Path) -> None:
    none = Environment("torchrec", (str(tmp_path / "none.whl"),), (), tmp_path)
    with pytest.raises(CannotBeMade, match=r"^[^\n]*none\.whl[^\n]*$"):
        none.make()
    assert none.lacks()


def measured_peers(monkeypatch: pytest.MonkeyPatch, peers: str) -> list[str]:
    """Those that the program would measure, of its command line."""
    asked: list[str] = []

    def measure(workloads: Any, peers: list[str], runs: int, seconds: float, say: Callable[[str], None]) -> Any:
        asked.extend(peers)
        return {"each": []}

    monkeypatch.setattr(tables, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["tables", "--peers", peers])
    tables.main()
    return asked


def test_a_peer_without_its_environment_is_skipped_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = an_environment(tmp_path, "torchrec==1")
    monkeypatch.setitem(ENVIRONMENTS, "torchrec", environment)
    assert measured_peers(monkeypatch, "stock,torchrec") == ["stock"]
    assert capsys.readouterr().out.splitlines()[0] == f"torchrec: skipped: {environment.lacks()}"
    with pytest.raises(SystemExit, match="nothing to compare with: torchrec: skipped: the environment"):
        measured_peers(monkeypatch, "torchrec")
    made(environment)
    assert measured_peers(monkeypatch, "stock,torchrec") == ["stock", "torchrec"]


STEPS = BATCHES + 1  # the last one has the batch of the first
PEER_WORKS = [
    TableWork(Tables(5, 50, 4), "sync", 1, 2, 32),
    TableWork(Tables(1, 51, 4, ids=3), "sync", 1, 2, 32),  # by rows, of which the last shard has fewer
    TableWork(Tables(3, 50, 4, ids=3, optimizer="rowwise-adagrad"), "sync", 1, 1, 32),
    TableWork(Tables(2, 50, 4, optimizer="sgd"), "sync", 1, 2, 32),
]


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.parametrize("work", PEER_WORKS, ids=str)
def test_torchrec_computes_the_losses_of_our_model(work: TableWork, monkeypatch: pytest.MonkeyPatch) -> None:
    if why := ENVIRONMENTS["torchrec"].lacks():
        pytest.skip(why)
    with processes(torchrec_environment(work)) as started:
        logs = torchrec_job(started, work, "--losses", str(STEPS))
        theirs = started.wait_for("losses", lambda: losses_in(logs))
    assert theirs == pytest.approx(our_losses(work, monkeypatch), abs=1e-5)
    assert theirs[-1] < theirs[0] - 0.005, "updates that move nothing would show no difference"


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.parametrize("size", [Tables(3, 50, 4), Tables(2, 50, 4, ids=3, optimizer="adam")], ids=str)
def test_recommenders_addons_compute_the_losses_of_our_model(size: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    if why := ENVIRONMENTS["tfra"].lacks():
        pytest.skip(why)
    work = TableWork(size, "async", 1, 1, 32)
    (address,) = free_addresses(1)
    flags = ["--losses", str(STEPS), "--address", address, "--batch-size", str(work.batch_size)]
    with processes(work.environment) as started:
        log = started.start("worker-0", "benchmarks.tfra_tables", *flags, python=ENVIRONMENTS["tfra"].run)
        theirs = started.wait_for("losses", lambda: losses_in([log]))
    mine = our_losses(work.with_tables(optimizer=LAZY.get(size.optimizer, size.optimizer)), monkeypatch)
    assert theirs == pytest.approx(mine, abs=1e-5)
    assert theirs[-1] < theirs[0] - 0.005, "updates that move nothing would show no difference"


def losses_in(logs: list[Path]) -> list[float] | None:
    """Those of the joint batch of all workers; None before all are printed."""
    each = [[float(line.split()[1]) for line in lines(log) if line.startswith("loss ")] for log in logs]
    return np.mean(each, axis=0).tolist() if all(len(found) == STEPS for found in each) else None


def our_losses(work: TableWork, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of our model in one process, on the joint batch, which is what mode sync computes."""
    monkeypatch.setenv(*next(iter(work.environment.items())))
    drawn_by = [drawn(work.tables, work.batch_size, worker) for worker in range(work.workers)]
    ids, labels = (
        np.stack([np.split(side, BATCHES) for side in sides], axis=1) for sides in zip(*drawn_by, strict=True)
    )
    with tf1.Graph().as_default(), tf1.Session() as session:
        features = tf1.placeholder(tf1.int64, [None, work.tables.count, work.tables.ids])
        targets = tf1.placeholder(tf1.float32, [None])
        spec = embedding_tables.model_fn(features, targets, "train")
        update = spec.optimizer(spec.learning_rate).minimize(spec.loss)
        session.run(tf1.global_variables_initializer())
        values = parameters(work.tables)
        for variable in tf1.trainable_variables():
            variable.load(values[variable.op.name], session)
        found = []
        for step in range(STEPS):
            feed = {features: np.concatenate(ids[step % BATCHES]), targets: np.concatenate(labels[step % BATCHES])}
            found.append(float(session.run([spec.loss, update], feed)[0]))
        return found
