"""Sessions: what a worker opens on a view, and what a ps does to its own state, without a worker."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.members.messages import Assignment
from psruntime.core.members.view import PsEntry, View
from psruntime.graph.base.errors import LOST_SESSION
from psruntime.graph.session import session
from psruntime.graph.session.session import ViewSessionCreator, WorkerServer, open_session
from tests.support.local_cluster import LocalCluster

pytestmark = pytest.mark.optimised

SERVER = WorkerServer(3, "grpc://a:9", "a:9")
VIEW = View(1, (PsEntry(0, "b:1", 11), PsEntry(1, "c:2", 12)))


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Of the sessions that are opened, in their order."""
    found: list[Any] = []

    def opened(_target: str, graph: Any, config: Any) -> Any:
        found.append(config)
        return SimpleNamespace(close=lambda: None, graph=graph)

    monkeypatch.setattr(session, "ViewSession", opened)
    return found


def is_rewritten(config: Any) -> bool:
    return not config.graph_options.rewrite_options.disable_meta_optimizer


def test_a_script_keeps_its_config_but_for_the_cluster(configs: list[Any]) -> None:
    own = tf1.ConfigProto(intra_op_parallelism_threads=7)
    own.cluster_def.job.add(name="ps").tasks[0] = "elsewhere:1"
    open_session(SERVER, tf1.Graph(), VIEW, runs_once=True, config=own)
    open_session(SERVER, tf1.Graph(), VIEW, config=own)
    jobs = {job.name: dict(job.tasks) for job in configs[0].cluster_def.job}
    assert jobs == {"ps": {0: "b:1", 1: "c:2"}, "worker": {3: "a:9"}}
    assert [config.intra_op_parallelism_threads for config in configs] == [7, 7]
    assert is_rewritten(own) and dict(own.cluster_def.job[0].tasks) == {0: "elsewhere:1"}


def test_only_what_prepares_a_view_is_run_as_it_is_built(configs: list[Any]) -> None:
    """Its runs come once, and to rewrite them takes longer; steps come again and again."""
    assignments = [Assignment(VIEW, 5, prepare=True), Assignment(VIEW, 5, prepare=False)]
    control_plane: Any = SimpleNamespace(
        mode="async", is_chief=lambda: True, await_view=lambda: assignments.pop(0),
        report_prepared=lambda *_: None, entered=lambda _: None,
    )  # fmt: skip
    preparation: Any = SimpleNamespace(run=lambda *_: None, require=lambda *_: None)
    graph = tf1.Graph()
    opens = partial(open_session, SERVER, graph)
    creator = ViewSessionCreator(graph, control_plane, preparation, lambda *_, **__: None, opens, lambda _: None)
    creator.create_session()
    assert [is_rewritten(config) for config in configs] == [False, True]


def test_a_session_is_cleared_by_its_index_and_no_other_is() -> None:
    cluster = LocalCluster(1)
    with tf1.Graph().as_default() as graph, tf1.device("/job:ps/task:0"):
        one = tf1.random.uniform([])
    session = cluster.session(graph)
    session.run(one)
    assert cluster.states[0].clear_session(5) == ""
    session.run(one)
    assert cluster.states[0].clear_session(0) == ""
    with pytest.raises(LOST_SESSION):
        session.run(one)
    session.close()
    with cluster.session(graph) as again:
        again.run(one)
    cluster.states[0].write_admitted({0: 7}, None)  # the ps's own session is still there
