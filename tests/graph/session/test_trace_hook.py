"""Traces of a worker's steps, on a cluster within this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.graph.session import trace_hook
from psruntime.model import ModelSpec
from psruntime.observe.meter import PHASES
from psruntime.observe.traces import APPLY, MUTEX, PHASE, STEP, Trace, read_trace
from tests.support.local_cluster import LocalCluster, Run, train
from tests.support.selection import long_but
from tests.support.small_models import get, linear, model_of


def traced(folder: Path, steps: int = 8, hooks: Sequence[Any] = (), **settings: Any) -> Run:
    def build(x: Any, y: Any, _: Any) -> ModelSpec:
        return ModelSpec(linear(x, get("kernel", [5, 1]), y), tf1.train.GradientDescentOptimizer, 0.05, hooks=hooks)

    settings = {"trace_steps": "3:6", "checkpoint_dir": str(folder), "save_secs": 0.0, **settings}
    return train(LocalCluster(1), model_of(build), steps, **settings)


def joined(folder: Path) -> Trace:
    return read_trace(str(folder / "trace" / "steps-3-6.json.gz"))


@pytest.mark.parametrize("mode", long_but(["sync"], ["async", "sync"]))
def test_a_trace_has_the_steps_of_the_range_their_phases_and_what_the_ps_did(mode: str, tmp_path: Path) -> None:
    run = traced(tmp_path, mode=mode)
    found = joined(tmp_path)
    steps = [span for span in found.spans if span.kind == STEP]
    assert [span.name for span in steps] == ["step 3", "step 4", "step 5"]
    losses = {f"step {result.global_step}": result.loss for result in run.results}
    assert [span.facts["loss"] for span in steps] == pytest.approx([losses[span.name] for span in steps], rel=1e-4)
    for step in steps:
        phases = [s for s in found.spans if s.kind == PHASE and step.begin_s - 1e-6 <= s.begin_s <= step.end_s]
        assert {span.name for span in phases} <= set(PHASES) and len(phases) == 5
        assert sum(s.end_s - s.begin_s for s in phases) == pytest.approx(step.end_s - step.begin_s, abs=1e-5)
    on_ps = [span for span in found.spans if span.task.startswith("ps")]
    assert {span.task for span in on_ps} == {"ps 0"} and {span.kind for span in on_ps} >= {APPLY, MUTEX}
    begin_s, end_s, slack_s = steps[0].begin_s, steps[-1].end_s, found.off_by_s + 0.001
    assert all(begin_s - slack_s <= span.begin_s <= span.end_s <= end_s + slack_s for span in on_ps)
    assert found.steps == "3:6" and found.modes == [mode]


@pytest.mark.long
def test_a_trace_that_the_end_of_the_job_cuts_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_hook, "JOIN_EVERY_S", 0.01)
    traced(tmp_path, steps=4)
    assert [span.name for span in joined(tmp_path).spans if span.kind == STEP] == ["step 3", "step 4"]


@pytest.mark.long
def test_a_job_that_ends_before_the_range_writes_none(tmp_path: Path) -> None:
    run = traced(tmp_path, steps=2)
    assert not (tmp_path / "trace").exists() and not run.named("trace_failed")


@pytest.mark.long
def test_a_job_that_goes_on_after_the_range_leaves_its_trace_as_it_is(tmp_path: Path) -> None:
    traced(tmp_path)
    before = (tmp_path / "trace" / "steps-3-6.json.gz").read_bytes()
    run = traced(tmp_path, steps=4)  # from the last checkpoint on
    assert run.results[0].global_step > 6
    assert [span.name for span in joined(tmp_path).spans if span.kind == STEP] == ["step 3", "step 4", "step 5"]
    assert len(before) > 0


def test_steps_that_another_hook_traces_are_not_taken(tmp_path: Path) -> None:
    class Profiling(tf1.train.SessionRunHook):  # type: ignore[misc]
        def before_run(self, run_context: Any) -> Any:
            return tf1.train.SessionRunArgs(None, options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE))

    traced(tmp_path, hooks=[Profiling()])
    assert [span.name for span in joined(tmp_path).spans if span.kind == STEP] == ["step 3", "step 4", "step 5"]


@pytest.mark.long
@pytest.mark.parametrize("damage", [b"", b"no part"])
def test_a_bad_part_of_another_worker_is_told_and_the_others_are_joined(damage: bytes, tmp_path: Path) -> None:
    parts = tmp_path / "trace" / "steps-3-6"
    parts.mkdir(parents=True)
    (parts / "worker-7.from-3.part.gz").write_bytes(damage)
    run = traced(tmp_path)
    assert len(run.results) == 8 and run.named("trace_failed")
    assert len([span for span in joined(tmp_path).spans if span.kind == STEP]) == 3


def test_a_trace_that_cannot_be_written_is_told_and_the_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("a file")
    run = traced(tmp_path)
    assert len(run.results) == 8 and len(run.named("trace_failed")) >= 1
