"""The control plane of a worker in mode sync whose view can be taken away, and sessions that are lost on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.core.members.messages import Assignment, Ending, Prepared
from psruntime.core.plan.plan import Plan
from psruntime.core.rounds.past_round import PastRound
from psruntime.core.rounds.round_messages import Action, Applied, Broken, CutOff, Pushed, Starved
from psruntime.graph.buckets.bucket_store import sections_on
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.loop.step_runner import StepRunner
from psruntime.graph.push.round_sum import SectionRounds
from psruntime.graph.session.session import callable_of
from psruntime.model import Context, Model
from tests.graph.step.test_clipping import summed
from tests.support.local_cluster import LocalCluster, LocalControlPlane

LOST = "the session was lost on purpose"


@dataclass
class RoundControlPlane(LocalControlPlane):
    """Does what the coordinator does, for one worker; `steps` rounds and the job is over.

    recorded: of each round that the variables hold, the batch that it was made of.
    on_turn: called with every turn before it is given.
    """

    recorded: list[int] = field(default_factory=list)
    contributed: list[Pushed] = field(default_factory=list)
    torn: list[Broken] = field(default_factory=list)
    restore: bool = False
    on_action: Callable[[RoundControlPlane, Action], None] = lambda control_plane, action: None

    def change_view(self) -> None:
        """As when a ps was away for a moment: the next view is prepared anew."""
        self.rounds.end()
        self.view = replace(self.view, number=self.view.number + 1)
        self.prepare = True

    def await_view(self) -> Assignment:
        return replace(super().await_view(), restore=self.restore)

    def report_prepared(self, assignment: Assignment, prepared: Prepared) -> None:
        self.prepare = self.restore = False
        self.prepared_at.append(prepared.global_step)
        self._record(self.rounds.begin(prepared.global_step, prepared.attempt))
        del self.recorded[prepared.global_step :]

    def may_step(self, under_way: int = 0) -> bool:
        return True

    def next_action(self, assignment: Assignment, report: Any, starved: Starved | None = None) -> Action | None:
        if not self.is_current(assignment):
            return None
        self.rounds.enter(assignment.incarnation, 0)
        self.rounds.set_starved(assignment.incarnation, starved.since if starved else None)
        if isinstance(report, Pushed):
            self.contributed.append(report)
            self._record(self.rounds.contribute(assignment.incarnation, report))
        elif isinstance(report, Applied):
            self._record(self.rounds.close(report))
        elif isinstance(report, CutOff):
            self.rounds.cut_off(assignment.incarnation, report)
        elif isinstance(report, Broken):
            self.torn.append(report)
            self.restore = True
            self.change_view()
            return None
        self.rounds.limit = self.steps
        if self.schedule:
            before = self.rounds.round if self.rounds.open else self.rounds.round - 1
            self.rounds.local_end = self.schedule.local_end_at(before)
        if self.rounds.global_step >= self.steps:
            return None
        self.rounds.open_next(1)
        action = self.rounds.action_of(assignment.incarnation, chief=0)
        self.on_action(self, action)
        return action

    def await_end(self, assignment: Assignment) -> Ending:
        return super().await_end(assignment) if self.is_current(assignment) else Ending.RESUME

    def _record(self, past: PastRound | None) -> None:
        if past and past.global_step > len(self.recorded):
            self.recorded += [part.batch for part in past.parts]


def lose_session(
    monkeypatch: Any, stage: str, how: str, occasion: int, also: Callable[[], None] = lambda: None
) -> list[str]:
    """Makes one run of a session fail as if a ps were away.

    stage: "compute" is a step, "closing" what it closes first, "close" a close by itself.  how: "before" anything of it
    ran, "after" all of it, or when it ran "partly", on ps 0 only.  occasion: which run of this stage, from 1.
    Returns a list that tells when it happened.
    """
    happened: list[str] = []
    runs: list[str] = []
    graphs: list[Any] = []
    make_runner = StepRunner.__init__

    def make_and_look(self: StepRunner, graph: Any, *args: Any) -> None:
        graphs.append(graph)
        make_runner(self, graph, *args)

    def make_losing(session: Any, fetches: Any, feed_list: Any) -> Any:
        call = callable_of(session, fetches, feed_list)
        step, rounds = graphs[-1].step, graphs[-1].rounds
        closed = [(r.section.ps, rounds.after_close[r.stores[0].bucket.name]) for r in rounds.sections]
        run, whole, part = {
            "compute": (step, step, {**step, "outcomes": step["outcomes"][:1]}),
            "closing": (step, [op for _, op in closed], [op for ps, op in closed if ps == 0]),
            "close": (rounds.close, rounds.close, rounds.close[:1]),
        }[stage]
        if fetches is not run:
            return call

        def run_and_lose(*values: Any) -> Any:
            runs.append(stage)
            if happened or len(runs) < occasion:
                return call(*values)
            if how != "before":
                session.run(whole if how == "after" else part, dict(zip(feed_list, values, strict=True)))
            happened.append(how)
            also()
            raise tf1.errors.UnavailableError(None, None, LOST)

        return run_and_lose

    monkeypatch.setattr(StepRunner, "__init__", make_and_look)
    monkeypatch.setattr("psruntime.graph.session.session.callable_of", make_losing)
    return happened


def write_books(cluster: LocalCluster, plan: Plan, ps: int, change: Callable[[Any], Any]) -> None:
    """Writes over the books of the last section of a ps, as an interrupted close may leave them."""
    with tf1.Graph().as_default() as graph:
        books = SectionRounds(sections_on(plan, ps, cluster.max_workers)[-1]).state
        value, new = books.read_value(), tf1.placeholder(tf1.int64, books.shape)
        write = books.assign(new, read_value=False)
    with cluster.session(graph) as session:
        session.run(write, {new: change(session.run(value))})


def plain_batches(model: Model, batches: list[list[int]], drawn: list[Any] | None = None) -> dict[str, Any]:
    """Variables and slots after plain TensorFlow has trained on these batches, each a list that is joined.

    drawn: the batches by number; by default those of the model's input.
    """
    inputs = InputStream(model, Context("train", 0, 1, 8, "", 3))
    drawn = drawn or [inputs.draw_endlessly() for _ in range(1 + max(n for joint in batches for n in joint))]
    with tf1.Graph().as_default() as graph:
        features, labels, batch = inputs.layout.placeholders()
        spec = model.model_fn(features, labels, "train")
        assert spec.optimizer is not None
        optimizer = spec.optimizer(spec.learning_rate)
        pairs = optimizer.compute_gradients(spec.loss, tf1.trainable_variables())
        if spec.clip_norm is not None:
            gradients, _ = tf1.clip_by_global_norm([summed(g) for g, _ in pairs], spec.clip_norm)
            pairs = list(zip(gradients, [v for _, v in pairs], strict=True))
        update = optimizer.apply_gradients(pairs)
        init, variables = tf1.global_variables_initializer(), {v.op.name: v for v in tf1.global_variables()}
    with tf1.Session(graph=graph) as session:
        session.run(init)
        for joint in batches:
            parts = [np.concatenate(arrays) for arrays in zip(*(drawn[n] for n in joint), strict=True)]
            session.run(update, dict(zip(batch, parts, strict=True)))
        values: dict[str, Any] = session.run(variables)
        return values
