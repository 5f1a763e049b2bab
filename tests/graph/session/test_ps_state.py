"""What a ps does to its own state, without a worker."""

from __future__ import annotations

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.graph.base.errors import LOST_SESSION
from tests.support.local_cluster import LocalCluster


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
