"""Local stages of one worker: it trains by itself, and its change is what the ps of the job have afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.ledger import is_balanced
from psruntime.core.rounds.round_messages import Contribution
from psruntime.errors import JobFailedError
from psruntime.graph.loop.alone_control import AloneControl
from psruntime.graph.loop.local_training import LocalTraining
from psruntime.model import Model
from tests.graph.step.test_against_tensorflow import OPTIMIZERS, plain_tensorflow
from tests.support.embedding_model import embedding_model
from tests.support.local_cluster import LocalCluster, Run, linear_model, train
from tests.support.round_control_plane import RoundControlPlane, plain_batches

MODEL = linear_model(OPTIMIZERS["sgd"], learning_rate=lambda step: 0.1 * 0.9**step)
TABLES = embedding_model(OPTIMIZERS["adagrad"], 0.05)
BATCH = 8


def local(cluster: LocalCluster, folder: Any, model: Model, steps: int, schedule: str, **more: Any) -> Run:
    """Trains up to global step `steps`."""
    settings = {"schedule": schedule, "checkpoint_dir": str(folder), "slice_bytes": 64, "keep": 100, **more}
    return train(cluster, model, steps, make_control_plane=RoundControlPlane, **settings)


def check(run: Run, expected: dict[str, Any], step: int) -> None:
    """The last checkpoint has these values, and the ledgers balance."""
    reader = tf1.train.load_checkpoint(run.checkpoints.latest())
    assert reader.get_tensor("global_step") == step
    for name, value in expected.items():
        np.testing.assert_allclose(reader.get_tensor(name), value, rtol=1e-6, atol=1e-6, err_msg=name)
    for ledger in run.cluster.ledgers(run.graph.plan).values():
        assert is_balanced(ledger)


def contributions(run: Run) -> list[Contribution]:
    assert isinstance(run.control_plane, RoundControlPlane)
    return run.control_plane.contributed


def test_a_local_stage_is_the_training_of_one_process(cluster: LocalCluster, tmp_path: Any) -> None:
    """Dense variables and a table; what the optimizer keeps on the ps of the job is as it was."""
    run = local(cluster, tmp_path, TABLES, 5, "local:5, async")
    of_plain = plain_batches(TABLES, [[number] for number in range(5)])
    parameters = {name: value for name, value in of_plain.items() if "Adagrad" not in name}
    assert len(parameters) > 2 and len(parameters) < len(of_plain)
    check(run, parameters, 5)
    saved = run.saved()
    assert all((saved[name] == saved[name].flat[0]).all() for name in of_plain.keys() - parameters.keys())
    (said,) = contributions(run)
    assert (said.round, said.batch, said.examples, said.apart) == (5, 4, 5.0 * BATCH, True)
    assert [facts["global_step"] for facts in run.named("local_ended")] == [5]
    assert len(run.results) == 5, "each step is told"


def test_rounds_follow_a_local_stage_and_go_before_it(cluster: LocalCluster, tmp_path: Any) -> None:
    """The batches go on, and the learning rate is that of the global step, in one as in the other."""
    run = local(cluster, tmp_path, MODEL, 9, "sync:2, local:4, sync")
    check(run, plain_tensorflow(MODEL, 9), 9)
    assert [said.round for said in contributions(run)] == [1, 2, 6, 7, 8, 9]
    assert [said.batch for said in contributions(run)] == [0, 1, 5, 6, 7, 8]


def test_in_another_view_a_worker_trains_anew(
    cluster: LocalCluster, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped = AloneControl.stepped
    steps: list[int] = []

    def lose_the_view(self: AloneControl, global_step: int) -> None:
        stepped(self, global_step)
        steps.append(global_step)
        if len(steps) == 2:
            control_plane = self._job
            assert isinstance(control_plane, RoundControlPlane)
            control_plane.change_view()

    monkeypatch.setattr(AloneControl, "stepped", lose_the_view)
    model = linear_model(OPTIMIZERS["momentum"])
    run = local(cluster, tmp_path, model, 4, "local:4, sync")
    assert steps == [1, 2, 1, 2, 3, 4]
    of_plain = plain_batches(model, [[2], [3], [4], [5]])
    check(run, {name: value for name, value in of_plain.items() if "Momentum" not in name}, 4)


def test_what_was_kept_is_pushed_again(cluster: LocalCluster, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The word of a contribution is lost, so the worker has the same turn again; it does not train for it again."""
    trained: list[int] = []
    run_training = LocalTraining.run

    def note(self: LocalTraining, session: Any, assignment: Any, end: int) -> Any:
        trained.append(end)
        return run_training(self, session, assignment, end)

    class Forgetful(RoundControlPlane):
        def next_turn(self, assignment: Any, done: Any, idle: Any = None) -> Any:
            if isinstance(done, Contribution) and not self.contributed:
                self.contributed.append(done)
                done = None
            return super().next_turn(assignment, done, idle)

    monkeypatch.setattr(LocalTraining, "run", note)
    model = linear_model(OPTIMIZERS["sgd"])
    settings = {"schedule": "local:3, sync", "checkpoint_dir": str(tmp_path)}
    run = train(cluster, model, 3, make_control_plane=Forgetful, **settings)
    assert trained == [3] and len(contributions(run)) == 2
    check(run, plain_batches(model, [[0], [1], [2]]), 3)


def test_numbers_that_are_not_finite_end_the_job(cluster: LocalCluster, tmp_path: Any) -> None:
    with pytest.raises(JobFailedError, match="the loss is inf at global step 1"):
        local(cluster, tmp_path, linear_model(OPTIMIZERS["sgd"], 1e20), 5, "local:5, sync")
    with pytest.raises(JobFailedError, match="worker 0 has come to numbers that are not finite by itself"):
        local(cluster, tmp_path, linear_model(OPTIMIZERS["sgd"], 3e38), 1, "local:1, sync", on_nan="continue")
