"""Hooks of a model."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.errors import UserCodeError
from psruntime.graph.loop.step_runner import StepsOnly
from psruntime.model import ModelSpec
from tests.support.local_cluster import LocalCluster, train
from tests.support.selection import long_but
from tests.support.small_models import get, linear, model_of


class Watching(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Counts its calls, and asks for a stop after so many steps."""

    def __init__(self, stop_after: int = 10**9) -> None:
        self.calls: dict[str, int] = {}
        self.losses: list[float] = []
        self.stop_after = stop_after
        self.loss: Any = None

    def begin(self) -> None:
        self.note("begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.note("session")

    def before_run(self, run_context: Any) -> Any:
        self.note("before")
        return tf1.train.SessionRunArgs([self.loss, tf1.train.get_global_step()])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.note("after")
        self.losses.append(float(run_values.results[0]))
        if len(self.losses) >= self.stop_after:
            run_context.request_stop()

    def end(self, session: Any) -> None:
        self.note("end")

    def note(self, call: str) -> None:
        self.calls[call] = self.calls.get(call, 0) + 1


def watched(*hooks: Any) -> Any:
    """A model with these hooks."""

    def build(x: Any, y: Any, _: Any) -> ModelSpec:
        loss = linear(x, get("kernel", [5, 1]), y)
        for hook in hooks:
            hook.loss = loss
        return ModelSpec(loss, tf1.train.GradientDescentOptimizer, 0.05, hooks=hooks)

    return model_of(build)


@pytest.mark.parametrize("mode", long_but(["sync"], ["async", "sync"]))
def test_a_hook_sees_the_steps_and_nothing_else(mode: str, tmp_path: Any) -> None:
    hook = Watching()
    run = train(LocalCluster(1), watched(hook), 7, mode=mode, checkpoint_dir=str(tmp_path), save_steps=2)
    assert hook.calls == {"begin": 1, "session": 1, "before": 7, "after": 7, "end": 1}
    assert hook.losses == pytest.approx([result.loss for result in run.results])


@pytest.mark.parametrize("mode", long_but(["sync"], ["async", "sync"]))
def test_a_hook_that_requests_a_stop_ends_the_training_and_the_last_checkpoint_is_written(
    mode: str, tmp_path: Any
) -> None:
    run = train(LocalCluster(1), watched(Watching(3)), 100, mode=mode, checkpoint_dir=str(tmp_path))
    assert len(run.results) == 3
    assert run.checkpoints.latest().endswith("-3")


def test_stock_hooks_find_the_global_step(tmp_path: Any) -> None:
    hooks = [tf1.train.StepCounterHook(2, output_dir=str(tmp_path)), tf1.train.StopAtStepHook(last_step=5)]

    def build(x: Any, y: Any, _: Any) -> ModelSpec:
        loss = linear(x, get("kernel", [5, 1]), y)
        return ModelSpec(loss, tf1.train.GradientDescentOptimizer, 0.05, hooks=hooks)

    run = train(LocalCluster(2), model_of(build), 100)
    assert [result.global_step for result in run.results] == [1, 2, 3, 4, 5]
    tf1.summary.FileWriterCache.clear()
    assert "global_step/sec" in {value.tag for event in events(tmp_path) for value in event.summary.value}


def test_a_hook_that_fails_is_named() -> None:
    class Failing(Watching):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            raise RuntimeError("no disk")

    with pytest.raises(UserCodeError, match=r"hook Failing failed at .*test_model_hooks.py:\d+: RuntimeError: no disk"):
        train(LocalCluster(1), watched(Failing()), 3)


@pytest.mark.parametrize("mode", long_but(["sync"], ["async", "sync"]))
def test_a_session_that_a_hook_loses_after_a_step_repeats_no_step(mode: str) -> None:
    class Losing(Watching):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            super().after_run(run_context, run_values)
            if len(self.losses) == 2:
                raise tf1.errors.UnavailableError(None, None, "the hook's own read failed")

    hook = Losing()
    run = train(LocalCluster(1), watched(hook), 5, mode=mode)
    assert (len(run.results), run.results[-1].global_step) == (5, 5 if mode == "async" else 4)
    assert hook.calls["before"] == 5
    assert [facts["reason"] for facts in run.named("hook_failed")] == ["the hook's own read failed"]


def test_a_stop_counts_no_more_when_what_was_trained_is_lost() -> None:
    step = 10
    hook = StepsOnly(Watching(1), lambda _: True, lambda: step, lambda *_, **__: None)
    context = tf1.train.SessionRunContext(tf1.train.SessionRunArgs([]), None)
    hook.after_run(context, tf1.train.SessionRunValues([1.0, 10], None, None))
    assert hook.stop_requested and not context.stop_requested
    hook.after_create_session(None, None)
    assert hook.stop_requested
    step = 8  # a ps was lost, and the job is back at the last checkpoint
    hook.after_create_session(None, None)
    assert not hook.stop_requested


def events(folder: Any) -> list[Any]:
    files = sorted(folder.glob("events.*"))
    return [event for file in files for event in tf1.train.summary_iterator(str(file))]
