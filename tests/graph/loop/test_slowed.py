"""A worker that is made slower by pauses: how long they are, and that nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.graph.loop import built
from psruntime.graph.loop.built import slowed
from tests.support.local_cluster import LocalCluster, linear_model, train

STEPS = 12
MODEL = linear_model(tf1.train.AdamOptimizer)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_each_step_pauses_by_what_steps_take_and_trains_the_same(
    mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    pauses: list[float] = []
    clock = [0.0]

    class Time:
        """Each step takes 0.125 s by itself."""

        @staticmethod
        def monotonic() -> float:
            clock[0] += 0.125
            return clock[0] + sum(pauses)

        @staticmethod
        def sleep(seconds: float) -> None:
            pauses.append(seconds)

    monkeypatch.setattr(built, "time", Time)
    settings = {"mode": mode}
    slow = train(LocalCluster(1), slowed(MODEL, 5.0), STEPS, checkpoint_dir=str(tmp_path / "slow"), **settings)
    plain = train(LocalCluster(1), MODEL, STEPS, checkpoint_dir=str(tmp_path / "plain"), **settings)
    assert pauses == [0.0] + [4 * 0.125] * (STEPS - 1)
    ours, theirs = slow.saved(), plain.saved()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-6, atol=1e-7, err_msg=name)


def test_a_worker_that_is_not_slowed_runs_the_model_itself() -> None:
    assert slowed(MODEL, 1.0) is MODEL
