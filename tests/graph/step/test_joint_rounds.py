"""Rounds of two workers, played in one session, equal plain TensorFlow on joint batches, and by parts to the bit."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.members.messages import Assignment
from psruntime.core.rounds.round_messages import Action, ActionKind, Applied, Complete, Pushed
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.loop.round_loop import RoundLoop
from psruntime.graph.loop.round_runs import RoundRuns
from psruntime.graph.loop.step_runner import StepRunner
from psruntime.graph.replay.rounds import ReplayedPart
from psruntime.graph.session.session import ViewHook
from psruntime.graph.session.worker_run import WorkerRun
from psruntime.model import Context, Model, ModelSpec
from tests.graph.step.test_against_tensorflow import OPTIMIZERS
from tests.graph.step.test_clipping import clipping
from tests.support.embedding_model import embedding_model
from tests.support.local_cluster import INCARNATION, LocalCluster, Run, linear_model, train
from tests.support.repeated import differing
from tests.support.round_control_plane import plain_batches
from tests.support.selection import long_but

pytestmark = pytest.mark.optimised

ROUNDS, EXAMPLES = 4, (8, 3)  # the second worker's batches are smaller, and weigh less
LOST = 2  # the round in which the first worker is lost when both have pushed; the second one pushes again what it kept
MODELS = {
    "dense": (linear_model(OPTIMIZERS["momentum"], 0.02), 64, 1.5),
    "tables": (embedding_model(OPTIMIZERS["adagrad"], 0.05), 1 << 24, 5.0),
}


class AnyView(ViewHook):
    """One that is never replaced."""

    def __init__(self) -> None:
        pass

    def before_run(self, run_context: Any) -> None:
        pass

    def saw(self, global_step: int) -> None:
        pass


@pytest.mark.parametrize("clip", long_but([True], [False, True]))
@pytest.mark.parametrize("kind", long_but(["dense"], MODELS))
def test_rounds_of_two_workers_equal_one_process(
    kind: str, clip: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, slice_bytes, norm = MODELS[kind]
    if clip:
        model = clipping(model, clip_norm=norm)
    cluster = LocalCluster(2)
    run = train(cluster, model, 0, mode="sync", slice_bytes=slice_bytes, checkpoint_dir=str(tmp_path))
    cluster.fence({0: INCARNATION, 1: INCARNATION + 1})
    drawn: list[list[Any]] = []
    factors: list[float] = []
    repeated: dict[int, list[ReplayedPart]] = {}

    class Inputs(InputStream):
        """The batches of one worker: every second one of the data."""

        def __init__(self, worker: int) -> None:
            super().__init__(model, Context("train", worker, 2, 8, "", 3))
            self.worker = worker
            for _ in range(worker):
                super().draw_if_any()
            self.drawn = 0  # by this worker

        def draw_if_any(self) -> list[Any]:
            batch = [array[: EXAMPLES[self.worker]] for array in super().draw_if_any() or []]
            super().draw_if_any()
            self.drawn -= 1
            drawn.append(batch)
            return batch

    def factor(self: RoundRuns, session: Any, closes: Complete) -> float:
        factors.append(factor_of(self, session, closes) * closes.examples)
        return factors[-1] / closes.examples

    factor_of = RoundRuns._factor
    monkeypatch.setattr(RoundRuns, "_factor", factor)
    creator: Any = SimpleNamespace(assignment=None)

    def worker_run(worker: int) -> WorkerRun:
        return WorkerRun(run.graph, Inputs(worker), run.control_plane, run.job, worker, lambda *_, **__: None)

    def never() -> bool:
        return False

    runner = StepRunner(run.graph, AnyView(), [])
    workers = [RoundLoop(worker_run(worker), creator, runner, run.results.append, never) for worker in range(2)]
    assignments = [Assignment(cluster.view, INCARNATION + worker, prepare=False) for worker in range(2)]
    with run.graph.graph.as_default(), cluster.session(run.graph.graph) as session:
        runner.after_create_session(session, None)
        monitored: Any = SimpleNamespace(run_step_fn=lambda step: step(None))
        complete: Complete | None = None
        for number in range(1, ROUNDS + 1):
            attempt = number + (10 if number <= LOST else 100)
            action = Action(ActionKind.PUSH, number, attempt, attempt, None if clip else complete)
            for worker, (steps, assignment) in enumerate(zip(workers, assignments, strict=True)):
                said = steps._contribute(monitored, assignment, action)
                facts = (number, attempt, number - 1, EXAMPLES[worker], clip)
                divisor = action.closes.members if action.closes else 1
                assert said == Pushed(*facts, divisor=divisor, positions=(worker,))
                made_of = [drawn[2 * (number - 1) + worker]]
                part = ReplayedPart(worker, float(EXAMPLES[worker]), divisor, (worker,), made_of)
                repeated.setdefault(number, []).append(part)
            complete = Complete(number, attempt, 2, sum(EXAMPLES))
            if number == LOST:
                again = Action(ActionKind.PUSH, number, attempt + 50, attempt, action.closes)
                said = workers[1]._contribute(monitored, assignments[1], again)
                facts = (number, again.attempt, number - 1, EXAMPLES[1], clip)
                assert said == Pushed(*facts, divisor=divisor, positions=(0,)), "the first of its attempt"
                complete = Complete(number, again.attempt, 1, EXAMPLES[1])
                repeated[number] = [replace(repeated[number][1], positions=(0,))]
            if number < ROUNDS and not clip:
                continue  # the next one closes it
            for chief in (0, 1):  # the second one finds it done
                closed = workers[chief]._runs.close(monitored, assignments[chief], complete)
                assert closed == Applied(number, complete.attempt, number)
        run.checkpoints.save(session)
        scales = session.run([rounds.scale.read_value() for rounds in run.graph.rounds.sections])
    assert set(scales) == {EXAMPLES[0] * (1 if clip else 2)}, "the first one's; it is divided where all take a share"
    assert (min(factors) < 0.999) == clip, "some rounds are clipped"
    reader = tf1.train.load_checkpoint(run.checkpoints.latest())
    assert differing(model, run.graph.plan, [repeated[n] for n in sorted(repeated)], str(tmp_path)) == {}
    joint = [[2 * n + 1] if n == LOST - 1 else [2 * n, 2 * n + 1] for n in range(ROUNDS)]
    for name, value in plain_batches(model, joint, drawn).items():
        np.testing.assert_allclose(reader.get_tensor(name), value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.long
def test_rows_of_constant_ids_have_the_sum_of_all_contributions() -> None:
    """A round that is closed by the step after it, with the graph as TensorFlow rewrites it: the ids of a constant have
    a shape, that of what they are kept in is another one after each contribution."""
    wanted = {"of_range": [1] * 10, "of_constant": [1] * 10, "of_batch": [1] * 10, "twice": [2, 2]}

    def input_fn(context: Context) -> Any:
        return tf1.data.Dataset.from_tensors(np.arange(10)).repeat()

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        ids = {"of_range": tf1.range(10), "of_constant": tf1.constant(np.arange(10)), "of_batch": features}
        ids["twice"] = tf1.constant([0, 0, 1, 1])
        total = 0.0
        for name, looked_up in ids.items():
            width = 3 if name == "of_batch" else 4  # those of another width are kept by themselves
            table = tf1.get_variable(name, [16, width], initializer=tf1.zeros_initializer())
            total -= tf1.reduce_sum(tf1.nn.embedding_lookup(table, looked_up))
        return ModelSpec(total, tf1.train.GradientDescentOptimizer, 1.0)

    cluster = LocalCluster(1)
    run = train(cluster, Model("tests.constant_ids", input_fn, model_fn), 0, mode="sync")
    cluster.fence({0: INCARNATION, 1: INCARNATION + 1})
    graph, rounds = run.graph, run.graph.rounds
    assert rounds is not None
    with cluster.session(graph.graph) as session:
        for attempt in range(1, ROUNDS + 2):
            for worker in range(2):
                me = worker, INCARNATION + worker
                feed = {
                    graph.model.batch[0]: np.arange(10),
                    graph.request.fed: graph.request.values((*me, attempt, worker)),
                }
                if attempt > 1:
                    last = (*me, attempt - 1, worker)
                    feed[rounds.request.fed] = rounds.request.values(last, members=2, factor=0.05)
                session.run(graph.step, feed)
        assert session.run(graph.read_step) == ROUNDS
    for name, rows in wanted.items():
        of_one = np.zeros(16)
        of_one[: len(rows)] = rows
        assert of_worker_row(run, name) == (ROUNDS * of_one).tolist(), name


def of_worker_row(run: Run, name: str) -> list[float]:
    """The first column of a table, as its ps has it."""
    views = run.graph.model.reads
    with run.cluster.session(run.graph.graph) as session:
        return session.run(views[name].value)[:, 0].tolist()  # type: ignore[no-any-return]
