"""Local stages of one worker: it trains by itself, and its change is what the ps of the job have afterwards."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import is_balanced
from psruntime.core.rounds.round_messages import Action, ActionKind, Pushed
from psruntime.errors import JobFailedError, UsageError
from psruntime.graph.loop.local_training import LocalTraining, _Carried
from psruntime.graph.session.worker_run import AloneControl
from psruntime.model import Model
from tests.graph.step.test_against_tensorflow import OPTIMIZERS, plain_tensorflow
from tests.support.dynamic_reference import dynamic_model
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


def contributions(run: Run) -> list[Pushed]:
    assert isinstance(run.control_plane, RoundControlPlane)
    return run.control_plane.contributed


@pytest.mark.long
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


@pytest.mark.long
def test_rounds_follow_a_local_stage_and_go_before_it(cluster: LocalCluster, tmp_path: Any) -> None:
    """The batches go on, and the learning rate is that of the global step, in one as in the other."""
    run = local(cluster, tmp_path, MODEL, 9, "sync:2, local:4, sync")
    check(run, plain_tensorflow(MODEL, 9), 9)
    assert [said.round for said in contributions(run)] == [1, 2, 6, 7, 8, 9]
    assert [said.batch for said in contributions(run)] == [0, 1, 5, 6, 7, 8]


@pytest.mark.long
def test_the_batch_of_a_round_before_it_is_not_computed_again_in_a_later_view(
    cluster: LocalCluster, tmp_path: Any
) -> None:
    changed: list[int] = []

    def change_view(control_plane: RoundControlPlane, action: Action) -> None:
        if action.kind is ActionKind.APPLY and action.closes and action.closes.local and not changed:
            changed.append(action.attempt)
            control_plane.change_view()

    make = partial(RoundControlPlane, on_action=change_view)
    settings = {"schedule": "sync:2, local:4, sync", "checkpoint_dir": str(tmp_path)}
    run = train(cluster, MODEL, 9, make_control_plane=make, **settings)
    assert changed and [(said.round, said.batch) for said in contributions(run)] == [
        (1, 0), (2, 1), (6, 5), (6, 9), (7, 10), (8, 11), (9, 12)
    ], "the stage is trained anew, with four batches more"  # fmt: skip


@pytest.mark.long
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


@pytest.mark.long
def test_what_was_kept_is_pushed_again(cluster: LocalCluster, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The word of a contribution is lost, so the worker has the same turn again; it does not train for it again."""
    trained: list[int] = []
    run_training = LocalTraining.train

    def note(self: LocalTraining, session: Any, assignment: Any, end: int) -> Any:
        trained.append(end)
        return run_training(self, session, assignment, end)

    class Forgetful(RoundControlPlane):
        def next_action(self, assignment: Any, done: Any, idle: Any = None) -> Any:
            if isinstance(done, Pushed) and not self.contributed:
                self.contributed.append(done)
                done = None
            return super().next_action(assignment, done, idle)

    monkeypatch.setattr(LocalTraining, "train", note)
    model = linear_model(OPTIMIZERS["sgd"])
    settings = {"schedule": "local:3, sync", "checkpoint_dir": str(tmp_path)}
    run = train(cluster, model, 3, make_control_plane=Forgetful, **settings)
    assert trained == [3] and len(contributions(run)) == 2
    check(run, plain_batches(model, [[0], [1], [2]]), 3)


@pytest.mark.long
def test_numbers_that_are_not_finite_end_the_job(cluster: LocalCluster, tmp_path: Any) -> None:
    with pytest.raises(JobFailedError, match="the loss is inf at global step 1"):
        local(cluster, tmp_path, linear_model(OPTIMIZERS["sgd"], 1e20), 5, "local:5, sync")
    with pytest.raises(JobFailedError, match="worker 0 has come to numbers that are not finite by itself"):
        local(cluster, tmp_path, linear_model(OPTIMIZERS["sgd"], 3e38), 1, "local:1, sync", on_nan="continue")


class Counting(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Counts steps, and ends the worker's training at the last of so many."""

    def __init__(self, last: int) -> None:
        self.steps, self.ended, self._last = 0, 0, last

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.steps += 1
        if self.steps == self._last:
            run_context.request_stop()

    def end(self, session: Any) -> None:
        self.ended += 1


def counted(last: int) -> tuple[Model, list[Counting]]:
    """A model, and the hooks that it makes for each graph."""
    hooks: list[Counting] = []
    model = linear_model(OPTIMIZERS["sgd"])

    def model_fn(*arguments: Any) -> Any:
        hooks.append(Counting(last))
        return replace(model.model_fn(*arguments), hooks=[hooks[-1]])

    return replace(model, model_fn=model_fn), hooks


@pytest.mark.long
def test_hooks_of_the_model_see_the_steps(cluster: LocalCluster, tmp_path: Any) -> None:
    model, hooks = counted(last=100)
    local(cluster, tmp_path, model, 7, "local:5, sync")
    assert sorted((hook.steps, hook.ended) for hook in hooks) == [(0, 0), (2, 1), (5, 1)], "specs, rounds, by itself"


@pytest.mark.long
def test_a_hook_that_ends_the_training_of_a_worker_ends_it_in_a_local_stage(
    cluster: LocalCluster, tmp_path: Any
) -> None:
    model, hooks = counted(last=3)
    run = local(cluster, tmp_path, model, 7, "local:5, sync")
    assert max(hook.steps for hook in hooks) == 3 and not contributions(run)


@pytest.mark.long
def test_a_session_that_is_lost_in_the_same_view_is_opened_anew(
    cluster: LocalCluster, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That with the ps of the job: the worker's own stay as they are, and it trains anew."""
    changes, lost = _Carried.changes, []

    def lose_once(self: _Carried, own_session: Any, bucket: str, by_rows: bool) -> Any:
        if not lost:
            lost.append(self._runner.session)
            monkeypatch.setattr(self._runner, "_newest", self._runner._newest._replace(session=LostSession()))
        return changes(self, own_session, bucket, by_rows)

    class LostSession:
        def run(self, *_: Any) -> Any:
            raise tf1.errors.UnavailableError(None, None, "lost on purpose")

    monkeypatch.setattr(_Carried, "changes", lose_once)
    model = linear_model(OPTIMIZERS["sgd"])
    run = local(cluster, tmp_path, model, 3, "local:3, sync")
    assert lost and len(run.named("session")) == len(run.named("local_began")) == 2
    check(run, plain_batches(model, [[3], [4], [5]]), 3)


@pytest.mark.long
def test_the_scale_of_the_learning_rates_is_that_of_the_job(cluster: LocalCluster, tmp_path: Any) -> None:
    scaled = partial(RoundControlPlane, learning_rate_scale=0.5)
    settings = {"schedule": "local:4, sync", "checkpoint_dir": str(tmp_path)}
    run = train(cluster, linear_model(OPTIMIZERS["sgd"], 0.2), 4, make_control_plane=scaled, **settings)
    check(run, plain_batches(linear_model(OPTIMIZERS["sgd"], 0.1), [[0], [1], [2], [3]]), 4)


@pytest.mark.long
def test_what_a_model_changes_of_its_own_goes_on(cluster: LocalCluster, tmp_path: Any) -> None:
    """A worker's copies of what is not trained are neither thrown back nor taken from anywhere."""
    model = linear_model(OPTIMIZERS["sgd"])

    def model_fn(*arguments: Any) -> Any:
        spec = model.model_fn(*arguments)
        seen = tf1.get_variable("seen", [], tf1.int64, tf1.zeros_initializer(), trainable=False)
        return replace(spec, updates=[seen.assign_add(1, read_value=False)])

    run = local(cluster, tmp_path, replace(model, model_fn=model_fn), 9, "sync:2, local:4, sync")
    assert run.saved()["seen"] == 9


def weighing(weight: float) -> Model:
    """A model whose batches weigh so much."""
    model = linear_model(OPTIMIZERS["sgd"])

    def model_fn(*arguments: Any) -> Any:
        return replace(model.model_fn(*arguments), examples=tf1.constant(weight))

    return replace(model, model_fn=model_fn)


@pytest.mark.long
def test_a_worker_weighs_what_its_batches_do(cluster: LocalCluster, tmp_path: Any) -> None:
    run = local(cluster, tmp_path, weighing(2.5), 4, "local:4, sync")
    assert [said.examples for said in contributions(run)] == [10.0]
    with pytest.raises(JobFailedError, match="no batch of the local stage to global step 8 had a finite loss and"):
        local(cluster, tmp_path, weighing(0.0), 8, "local:8, sync")


@pytest.mark.long
def test_what_was_trained_before_the_stage_is_saved_when_it_is_due(cluster: LocalCluster, tmp_path: Any) -> None:
    """Nobody steps any more in the rounds, so no step saves it."""
    run = local(cluster, tmp_path, MODEL, 7, "sync:3, local:4, sync", save_steps=3)
    events = [name for name, _ in run.events if name in ("checkpoint", "local_began", "local_ended")]
    assert events == ["local_began", "checkpoint", "local_ended", "checkpoint"]
    assert run.named("checkpoint")[0]["path"].endswith("-3")


def test_models_that_have_no_local_stages(cluster: LocalCluster, tmp_path: Any) -> None:
    ids = np.arange(16).reshape(8, 2)
    with pytest.raises(UsageError, match="optimizer FtrlOptimizer makes variable"):
        local(cluster, tmp_path, linear_model(OPTIMIZERS["ftrl"]), 4, "local:4, sync")
    with pytest.raises(UsageError, match="and the model dynamic table table"):
        local(cluster, tmp_path, dynamic_model(ids, np.zeros(8, np.float32), capacity=96), 4, "local:4, sync")
