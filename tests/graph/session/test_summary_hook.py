"""What a training writes for TensorBoard, read with TensorBoard's own loader."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from psruntime.core.members.view import View
from psruntime.graph.base.summary_writer import SummaryWriter
from psruntime.model import ModelSpec
from tests.support import docs, worlds
from tests.support.local_cluster import LocalCluster, LocalControlPlane, Run, train
from tests.support.selection import long_but
from tests.support.small_disk import small_disk
from tests.support.small_models import get, linear, model_of


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag -> [(global step, value)]."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def documented_tags() -> list[str]:
    return [tag for row in docs.table("docs/observing.md", "summaries") for tag in re.findall("`(.+?)`", row[0])]


def summarized(folder: Path, steps: int = 10, **settings: Any) -> Run:
    """Trains a model with a summary of its own."""

    def build(x: Any, y: Any, _: Any) -> ModelSpec:
        loss = linear(x, get("kernel", [5, 1]), y)
        tf1.summary.scalar("loss", loss)
        return ModelSpec(loss, tf1.train.GradientDescentOptimizer, 0.05)

    return train(
        LocalCluster(1), model_of(build), steps, **{"checkpoint_dir": str(folder), "summary_steps": 1, **settings}
    )


@pytest.mark.parametrize("mode", long_but(["sync"], ["async", "sync"]))
def test_the_chief_writes_its_own_figures_beside_the_model_s_every_so_many_steps(mode: str, tmp_path: Path) -> None:
    run = summarized(tmp_path, mode=mode, summary_steps=3)
    found = curves(tmp_path)
    steps, losses = zip(*found["loss"], strict=True)
    assert len(steps) >= 3 and {after - before for before, after in pairwise(steps)} == {3}
    of_step: dict[int, float] = {}
    for result in run.results:
        of_step.setdefault(result.global_step, result.loss)
    assert losses == pytest.approx([of_step[step] for step in steps])
    assert set(found) == {"loss", *documented_tags()}
    assert found["psruntime/loss"] == found["loss"]
    assert found["psruntime/staleness_max"] == found["psruntime/staleness_mean"] == [(step, 0.0) for step in steps]
    for tag in ("psruntime/examples_per_second", "psruntime/global_steps_per_second"):
        speeds = dict(found[tag])
        assert list(speeds) == list(steps[1:]) and min(speeds.values()) > 0
    examples, steps_of_job = (found[f"psruntime/{name}_per_second"] for name in ("examples", "global_steps"))
    assert [a / b for (_, a), (_, b) in zip(examples, steps_of_job, strict=True)] == pytest.approx(
        [8.0] * len(examples)
    )


@pytest.mark.long
@pytest.mark.parametrize("settings", [{}, {"local_steps": 2}, {"mode": "sync"}])
def test_the_norm_of_the_gradient_is_that_before_its_limit(settings: Any, tmp_path: Path) -> None:
    def build(x: Any, _: Any, __: Any) -> ModelSpec:
        kernel = get("kernel", [2])
        return ModelSpec(tf1.reduce_sum(kernel * [3.0, 4.0]), tf1.train.GradientDescentOptimizer, 0.1, clip_norm=1.0)

    train(LocalCluster(2), model_of(build), 4, checkpoint_dir=str(tmp_path), summary_steps=1, **settings)
    norms = [value for _, value in curves(tmp_path)["psruntime/gradient_norm"]]
    assert len(norms) >= 3 and norms == pytest.approx([5.0] * len(norms))


def at_half_the_rate(view: View, steps: int) -> LocalControlPlane:
    return LocalControlPlane(view, steps, learning_rate_scale=0.5)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_the_learning_rate_is_that_of_the_update_for_each_optimizer(mode: str, tmp_path: Path) -> None:
    def build(x: Any, y: Any, _: Any) -> ModelSpec:
        loss = linear(x, get("deep/kernel", [5, 1]), y) + tf1.reduce_sum(tf1.square(get("wide", [3])))
        rates = {"deep/*": lambda step: 1.0 / (1 + step), "*": 0.5}
        return ModelSpec(loss, dict.fromkeys(rates, tf1.train.GradientDescentOptimizer), rates)

    settings = {"make_control_plane": at_half_the_rate, "checkpoint_dir": str(tmp_path), "summary_steps": 1}
    train(LocalCluster(1), model_of(build), 3, mode=mode, **settings)
    found = curves(tmp_path)
    rates = [0.5, 0.25, 0.5 / 3]
    deep = [value for _, value in found["psruntime/learning_rate/deep/*"]]
    assert len(deep) >= 2 and deep == pytest.approx(rates[: len(deep)])
    assert [value for _, value in found["psruntime/learning_rate/*"]] == pytest.approx([0.25] * len(deep))


class NotTheChief(LocalControlPlane):
    def is_chief(self) -> bool:
        return False


@pytest.mark.parametrize(
    "settings", [{"summary_steps": 0}, {"checkpoint_dir": ""}, {"make_control_plane": NotTheChief}]
)
def test_nobody_else_writes_any(settings: Any, tmp_path: Path) -> None:
    summarized(tmp_path, 5, **settings)
    assert not list(tmp_path.glob("events.*"))


def test_every_worker_writes_where_that_is_asked_for(tmp_path: Path) -> None:
    summarized(tmp_path, 3, make_control_plane=NotTheChief, summary_workers="all", summary_steps=1)
    assert [step for step, _ in curves(tmp_path)["psruntime/loss"]] == [1, 2, 3]


def test_a_failure_to_write_is_told_once_and_the_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise tf1.errors.ResourceExhaustedError(None, None, "events.1; No space left on device")

    monkeypatch.setattr(tf1.io, "TFRecordWriter", full)
    run = summarized(tmp_path, 5, summary_steps=1)
    assert len(run.results) == 5
    (first, counted) = run.named("summaries_failed")
    assert (first["reason"], counted["summaries_lost"]) == ("events.1; No space left on device", 5)


@pytest.mark.skipif(bool(worlds.refusal()), reason=worlds.refusal())
def test_summaries_of_a_full_disk_are_counted_and_written_again_when_there_is_room(tmp_path: Path) -> None:
    logged: list[tuple[str, dict[str, object]]] = []
    with small_disk(tmp_path / "disk", "256k") as disk:
        writer = SummaryWriter(str(tmp_path / "disk"), lambda event, **facts: logged.append((event, facts)))
        assert writer.write(1, {"x": 1.0})
        disk.fill()
        long = tf1.Summary(value=[tf1.Summary.Value(tag="long" * 4000, simple_value=1.0)]).SerializeToString()
        assert not any(writer.write(step, {"x": 1.0}, long) for step in range(2, 8))
        disk.free()
        steps = range(8, 20)
        written = [step for step in steps if writer.write(step, {"x": 1.0})]
        lost = 6 + len(steps) - len(written)
        (failed, first), (resumed, counted) = logged
        assert (failed, resumed) == ("summaries_failed", "summaries_resumed")
        assert "No space left on device" in str(first["reason"])
        assert written and counted["summaries_lost"] == lost
        writer.close()
        newest = max((tmp_path / "disk").glob("events.*"), key=lambda file: int(file.suffix[1:]))
        assert [event.step for event in tf1.train.summary_iterator(str(newest))][1:] == written


class ChiefForAWhile(LocalControlPlane):
    """Is the chief of steps 1 to 3 and from 8 on."""

    def is_chief(self) -> bool:
        return not 3 <= self.done < 7


@pytest.mark.long
def test_who_becomes_chief_again_begins_a_file_and_says_nothing_of_the_time_between(tmp_path: Path) -> None:
    summarized(tmp_path, 10, make_control_plane=ChiefForAWhile, summary_steps=1)
    assert len(list(tmp_path.glob("events.*"))) == 2
    assert [step for step, _ in curves(tmp_path)["psruntime/loss"]] == [1, 2, 3, 8, 9, 10]


def test_tensorboard_forgets_what_a_rollback_took_back(tmp_path: Path) -> None:
    writer = SummaryWriter(str(tmp_path), lambda *_, **__: None)
    for step in range(1, 11):
        writer.write(step, {"loss": float(step)}, starts=step == 1)
    for step in (5, 6):
        writer.write(step, {"loss": 100.0 + step}, starts=step == 5)
    writer.write(3, {"evaluation/loss": 1.0})
    writer.close()
    assert curves(tmp_path)["loss"] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 105.0), (6, 106.0)]
