"""TensorFlow runs the graphs of a test as they are built, unless the test has the marker `optimised`.

To rewrite a graph (Grappler) takes half of the processor time of a test that runs it a few times.  Those that compare
numbers with plain TensorFlow, or count what TensorFlow makes of a graph, run graphs as a user's job does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def run_as_built(patch: Callable[[Any, str, Any], None]) -> None:
    """patch: `setattr`, which is for the whole process, or that of a test."""
    import tensorflow.compat.v1 as tf1

    make, start = tf1.ConfigProto, tf1.Session.__init__

    def as_built(*args: Any, **kwargs: Any) -> Any:
        config = make(*args, **kwargs)
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        return config

    def started(session: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        start(session, target, graph, config or as_built())

    patch(tf1, "ConfigProto", as_built)
    patch(tf1.Session, "__init__", started)


@pytest.fixture(autouse=True)
def graphs_as_built(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, for the tests below a conftest.py that imports this fixture."""
    if not request.node.get_closest_marker("optimised"):
        from tests.support import local_cluster

        monkeypatch.setattr(local_cluster, "idle", local_cluster.idle_as_built)  # a server keeps the options it had
        run_as_built(monkeypatch.setattr)
