"""The graph side of steering: scales of learning rates, checkpoints while no step comes, views lost meanwhile."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from psruntime.core.accounting.accounts import RECEIVED
from tests.graph.loop.test_training_loop import SGD, next_view, totals
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.support.local_cluster import INCARNATION, LocalCluster, LocalControlPlane, linear_model, train

STEPS = 6
EACH, MODES = ("sgd", "momentum", "adam"), ("async", "sync")


@pytest.mark.long
@pytest.mark.parametrize("case", [" ".join(names) for names in product(EACH, MODES)])
def test_the_scale_multiplies_every_learning_rate(case: str, tmp_path: Any) -> None:
    """On all ps, also where the rate is a function of the step; it is read when the update is made."""
    optimizer, mode = case.split()

    def trained(name: str, rate: float, scale: float) -> dict[str, Any]:
        cluster = LocalCluster(2)
        for state in cluster.states:
            state.write_admitted({0: INCARNATION}, None, scale)
        model = linear_model(OPTIMIZERS[optimizer], lambda step: rate / (1 + step))
        run = train(cluster, model, STEPS, mode=mode, checkpoint_dir=str(tmp_path / name), plan="per-variable")
        return run.saved()

    scaled, expected = trained("scaled", 0.1, 0.25), trained("expected", 0.025, 1.0)
    other = trained("other", 0.1, 1.0)
    assert scaled.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(scaled[name], value, rtol=1e-5, atol=1e-7, err_msg=name)
    assert any(not np.allclose(other[name], value, rtol=1e-3) for name, value in expected.items())


class Held(LocalControlPlane):
    """No step begins after the third until a checkpoint is written, which is wanted then."""

    saved_at = -1

    def wants_checkpoint(self) -> bool:
        return self.done == 3 and self.saved_at < 3

    def saved(self, global_step: int) -> None:
        self.saved_at = global_step

    def may_step(self, under_way: int = 0) -> bool:
        while self.done == 3 and self.saved_at < 3:
            self.act_in_pause()
        return super().may_step(under_way)


def test_a_checkpoint_is_written_while_no_step_comes(tmp_path: Any) -> None:
    run = train(LocalCluster(1), SGD, STEPS, make_control_plane=Held, checkpoint_dir=str(tmp_path), save_steps=1000)
    steps = [int(event["path"].rpartition("-")[2]) for event in run.named("checkpoint")]
    assert steps == [3, STEPS]


@pytest.mark.long
def test_no_step_is_begun_in_a_session_that_was_lost_during_a_hold() -> None:
    """It is asked again in the next one, which may be held."""

    class Changing(LocalControlPlane):
        asked: list[tuple[int, int]] = []

        def may_step(self, under_way: int = 0) -> bool:
            self.asked.append((self.done, self.view.number))
            if self.done == 2 and self.view.number == 1:
                next_view(self)
            return super().may_step(under_way)

    run = train(LocalCluster(1), SGD, 4, make_control_plane=Changing)
    assert totals(run, RECEIVED) == {4}
    assert run.control_plane.asked[:4] == [(0, 1), (1, 1), (2, 1), (2, 2)]  # type: ignore[attr-defined]
