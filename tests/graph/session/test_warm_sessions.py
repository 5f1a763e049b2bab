"""Warm sessions: what makes one ready changes nothing, and it serves as a new one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.members.view import PsEntry, View
from psruntime.graph.loop import loop_graphs
from psruntime.graph.loop.loop_graphs import WarmSessions
from psruntime.graph.session.session import ViewSession, open_session
from psruntime.model import ModelSpec
from tests.support.local_cluster import LocalCluster, Run, train
from tests.support.small_models import get, linear, model_of

calls: list[int] = []  # of the model's own Python function


def leaving_traces(x: Any, y: Any, _: Any) -> ModelSpec:
    """Moves averages, draws random numbers, counts in a local variable, and calls Python."""

    def noted(count: Any) -> Any:
        calls.append(int(count))
        return np.int64(0)

    x = tf1.layers.batch_normalization(x, training=True, momentum=0.5, name="norm")
    with tf1.device(None):  # so that it is on no device by name
        x = x + tf1.random.normal([5], seed=3)
    with tf1.device("/cpu:0"):  # so that what is kept here is on two devices by name
        count = tf1.get_variable(
            "count", [], tf1.int64, tf1.zeros_initializer(), trainable=False, collections=["local_variables"]
        )
    counted = count.assign_add(1)
    loss = linear(x, get("kernel", [5, 1]), y)
    _, mean = tf1.metrics.mean(loss)
    updates = [*tf1.get_collection(tf1.GraphKeys.UPDATE_OPS), mean, tf1.py_func(noted, [counted], tf1.int64)]
    return ModelSpec(loss, lambda rate: tf1.train.MomentumOptimizer(rate, 0.9), 0.05, updates=updates)


MODEL = model_of(leaving_traces)


def state(run: Run) -> dict[str, Any]:
    """What ps and worker hold, and how often the model's function was called."""
    graph = run.graph.graph
    with run.cluster.session(graph) as session, graph.as_default():
        handles = {op.name: op for op in graph.get_operations() if op.type == "VarHandleOp"}
        exist = {name: tf1.raw_ops.VarIsInitializedOp(resource=op.outputs[0]) for name, op in handles.items()}
        there = [name for name, is_there in session.run(exist).items() if is_there]
        reads = {name: _read(handles[name]) for name in there}
        held = {name: value.tolist() for name, value in session.run(reads).items()}
    return {"calls": len(calls), **held}


def _read(handle: Any) -> Any:
    return tf1.raw_ops.ReadVariableOp(resource=handle.outputs[0], dtype=tf1.as_dtype(handle.get_attr("dtype")))


def trained(modes: list[str], folder: Path, warms: bool) -> Run:
    """Three steps in each of two modes, and three more in the first, for which sessions are warmed before."""
    cluster, settings = LocalCluster(2), {"save_steps": 1000, "checkpoint_dir": str(folder)}
    runs = [train(cluster, MODEL, 3, mode=mode, **settings) for mode in modes]
    built = runs[0].built
    before = state(runs[0])
    if warms:
        built.sessions.warm(cluster.server, cluster.view, prepares=True)
        assert state(runs[0]) == before and len(before) > 20
    return train(cluster, MODEL, 3, mode=modes[0], built=built, **settings)


@pytest.mark.long
@pytest.mark.parametrize("modes", [["async", "sync"], ["sync", "async"]])
def test_a_session_is_warmed_by_what_changes_nothing(
    modes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[bool] = []

    def noted(*arguments: Any, runs_once: bool) -> Any:
        opened.append(runs_once)
        return open_session(*arguments, runs_once=runs_once)

    monkeypatch.setattr(loop_graphs, "open_session", noted)
    cold = trained(modes, tmp_path / "cold", warms=False)
    assert opened == [True, False] * 3, "each run opens one to prepare its view, and one for its steps"
    warm = trained(modes, tmp_path / "warm", warms=True)
    assert opened[6:] == [True, False, True, False, False, True], "the last run opens none"
    assert [result.loss for result in warm.results] == [result.loss for result in cold.results]
    ours, theirs = warm.saved(), cold.saved()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


class Opened(ViewSession):
    """A session that is only a name."""

    def __init__(self, name: str, among: list[str]) -> None:
        self.name, self._session = name, None
        self._among: list[str] = among
        among.append(name)

    def end(self) -> None:
        """Also called by what deletes a session, once more."""
        if self._among:
            self._among.remove(self.name)
        self._among = []


class Sessions:
    """Those that are open: in WarmSessions, whose warm-ups do as they are told, or handed out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: Any = None, preparation: Any = None) -> None:
        self.open: list[str] = []
        self.is_left = False
        self.warm = WarmSessions(None, steps or (lambda _: None), preparation or (lambda _: None))
        monkeypatch.setattr(loop_graphs, "open_session", self._opened)
        monkeypatch.setattr(tf1.Session, "close", lambda session: session.end())

    def hand_out(self, view: View, prepares: bool = False) -> Any:
        return self.warm.open(SERVER, lambda: self.is_left, view, prepares)

    def _opened(self, _server: Any, _graph: Any, view: View, runs_once: bool) -> Any:
        return Opened(f"{view.number} {'once' if runs_once else 'steps'}", self.open)


SERVER: Any = None
VIEW, LATER = (View(number, (PsEntry(0, "b:1", 11),)) for number in (1, 2))
ELSEWHERE = View(3, (PsEntry(0, "b:1", 12),))


def test_one_is_handed_out_once_for_what_it_was_warmed_for(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(monkeypatch)
    sessions.warm.warm(SERVER, VIEW, prepares=False)
    given = [sessions.hand_out(LATER, prepares=True), sessions.hand_out(LATER), sessions.hand_out(LATER)]
    assert [session.name for session in given] == ["2 once", "1 steps", "2 steps"], "the ps are the same"
    for session in given:
        session.close()
    assert sessions.open == []


def test_one_of_other_ps_and_one_that_is_not_wanted_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(monkeypatch)
    for _ in range(2):  # the second time they are there
        sessions.warm.warm(SERVER, VIEW, prepares=True)
    assert sessions.open == ["1 steps", "1 once"]
    given = sessions.hand_out(ELSEWHERE)
    assert given.name == "3 steps" and sessions.open == ["1 once", "3 steps"]
    sessions.warm.warm(SERVER, ELSEWHERE, prepares=True)
    assert sessions.open == ["3 steps", "3 steps", "3 once"]
    sessions.warm.close()
    assert sessions.open == ["3 steps"]


def test_what_is_closed_is_kept_for_the_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(monkeypatch)
    first, second = sessions.hand_out(VIEW), sessions.hand_out(VIEW)
    sessions.is_left = True
    first.close()
    second.close()
    assert sessions.open == ["1 steps"], "one is enough"
    sessions.is_left = False
    sessions.warm.warm(SERVER, LATER, prepares=False)
    again = sessions.hand_out(LATER)
    assert again is first
    again.close()
    assert sessions.open == []


def test_only_a_warm_session_that_prepared_a_view_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(monkeypatch)
    sessions.hand_out(VIEW, prepares=True).close()
    assert sessions.open == []
    sessions.warm.warm(SERVER, VIEW, prepares=True)
    sessions.hand_out(VIEW, prepares=True).close()
    assert sessions.open == ["1 steps", "1 once"]
    sessions.warm.close()
    assert sessions.open == []


def test_one_that_is_let_go_of_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is deleted then, which closes it."""
    sessions = Sessions(monkeypatch)
    sessions.is_left = True
    sessions.hand_out(VIEW)
    assert sessions.open == [] and not sessions.warm.keeps_any


def test_none_is_left_of_a_warm_up_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a run has failed, as where a ps is lost, that shows where it is wanted."""

    def lost(_session: Any) -> None:
        raise tf1.errors.UnavailableError(None, None, "gone")

    def wrong(_session: Any) -> None:
        raise KeyError("kernel")

    sessions = Sessions(monkeypatch, preparation=lost)
    sessions.warm.warm(SERVER, VIEW, prepares=True)
    assert sessions.open == ["1 steps"]
    sessions = Sessions(monkeypatch, steps=lost)
    sessions.warm.warm(SERVER, VIEW, prepares=True)
    assert sessions.open == []
    sessions = Sessions(monkeypatch, steps=wrong)
    with pytest.raises(KeyError):
        sessions.warm.warm(SERVER, VIEW, prepares=True)
    assert sessions.open == []
