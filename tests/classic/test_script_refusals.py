"""What a script may bring along that its job has no use for: device filters, tf.train.SyncReplicasOptimizer."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.classic.joining import ScriptPlace, counting_of, join_script
from psruntime.classic.placement import check_placement
from psruntime.errors import UsageError
from psruntime.graph.session.session import open_session
from tests.classic.test_script_folders import STOCK
from tests.support.local_cluster import LocalCluster

FILTERS = [
    ["/job:ps"], ["/job:ps", "/job:worker/task:0"], ["/job:worker/task:1"], ["/job:ps/task:0"], ["/device:CPU:0"],
    ["/job:chief"], ["nonsense"], [],
]  # fmt: skip


def test_device_filters_leave_nothing_out() -> None:
    """Neither a ps nor the worker, without which TensorFlow would abort the process."""
    cluster = LocalCluster(2)
    for filters in FILTERS:
        config = tf1.ConfigProto(device_filters=filters)
        with tf1.Graph().as_default() as graph:
            on_all = []
            for device in ("/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:0"):
                with tf1.device(device):
                    on_all.append(tf1.random.uniform([]) * 0 + 1)
            with open_session(cluster.server, graph, cluster.view, config=config) as session:
                assert session.run(on_all) == [1, 1, 1], filters
        assert list(config.device_filters) == filters, "the user's stays as it is"


ON_WORKERS: dict[str, tuple[str, Any, bool]] = {  # device, what is done with it, whether it is let in
    "a copy": ("/job:worker/task:0/cpu:0", lambda w: tf1.assign(w, 2.0), True),
    "of another worker": ("/job:worker/task:1", lambda w: tf1.assign(w, 2.0), False),
    "of no certain worker": ("/job:worker", lambda w: tf1.assign(w, 2.0), False),
    "by no device": ("", lambda w: tf1.assign(w, 2.0), False),
    "a trained one": ("/job:worker/task:0", tf1.train.AdamOptimizer().minimize, False),
    "a counted one": ("/job:worker/task:0", lambda w: tf1.assign_add(w, 1.0), False),
}


@pytest.mark.parametrize("resource", [True, False])
@pytest.mark.parametrize("case", ON_WORKERS)
def test_which_global_variables_a_worker_may_have(case: str, resource: bool) -> None:
    device, use, is_let_in = ON_WORKERS[case]
    with tf1.Graph().as_default() as graph:
        with tf1.device(device):
            w = tf1.get_variable("w", [], initializer=tf1.zeros_initializer(), use_resource=resource)
            use(w)
        tf1.train.Saver()
        tf1.report_uninitialized_variables()
        if is_let_in:
            check_placement(graph, 1, 0)
            return
        with pytest.raises(UsageError, match=r"'w.*' is (not on a ps|built for worker 1)"):
            check_placement(graph, 1, 0)


def sync_replicas(sparse: bool, hook: bool) -> None:
    table = tf1.get_variable("w", [4, 2])
    loss = tf1.reduce_sum(tf1.nn.embedding_lookup(table, [1, 2]) if sparse else table)
    inner = tf1.train.GradientDescentOptimizer(0.1)
    optimizer = tf1.train.SyncReplicasOptimizer(inner, replicas_to_aggregate=2, total_num_replicas=2)
    optimizer.minimize(loss, global_step=tf1.train.get_or_create_global_step())
    if hook:
        optimizer.make_session_run_hook(True)
    else:
        optimizer.get_chief_queue_runner()
        optimizer.get_init_tokens_op()


@pytest.mark.parametrize("name", ["psruntime.MonitoredTrainingSession", "psruntime.Supervisor"])
def test_sync_replicas_is_refused_with_the_way(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for sparse, hook in ((False, True), (True, True), (False, False)):
        with tf1.Graph().as_default(), pytest.raises(SystemExit) as ended:
            sync_replicas(sparse, hook)
            counting_of(name)
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "SyncReplicas" in line]
        assert ended.value.code == 2 and line.startswith(f"{name}: ") and "--mode sync" in line


MISTAKES: dict[str, tuple[Any, Any, str]] = {
    "index": (ScriptPlace(index="0"), STOCK, "index must be an integer, got '0'"),  # type: ignore[arg-type]
    "ps_arguments": (
        ScriptPlace(index=0, ps_arguments=["--insecure"]),
        STOCK,
        "give colocate_ps=True, or leave it out",
    ),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_in_a_place_is_one_line(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    place, stock, complaint = MISTAKES[kind]
    with pytest.raises(SystemExit) as ended:
        join_script("it", place, stock, None)  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith("it: ") and complaint in said and said.count("\n") == 1
