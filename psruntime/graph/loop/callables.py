"""A run that is called many times: what is fetched and fed is taken apart once.

tf1.Session.make_callable does that only without a feed list; with one it takes everything apart at each call, and
extends the session by what was added to the graph, under a lock.  This is what it does without, with feeds; the names
of TensorFlow that are not public stand here alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tensorflow.python.client.session import _FetchHandler


def callable_of(session: Any, fetches: Any, feed_list: Sequence[Any]) -> Callable[..., Any]:
    """What runs `fetches`, of any structure, with a value for each tensor of `feed_list`."""
    session._extend_graph()
    handler = _FetchHandler(session.graph, fetches, {})
    fetched = [tensor._as_tf_output() for tensor in handler.fetches()]
    targets = [operation._c_op for operation in handler.targets()]
    fed = [(tensor._as_tf_output(), tensor.dtype.as_numpy_dtype) for tensor in feed_list]

    def call(*values: Any) -> Any:
        feeds = {output: np.asarray(value, dtype) for (output, dtype), value in zip(fed, values, strict=True)}
        return handler.build_results(session, session._call_tf_sessionrun(None, feeds, fetched, targets, None))

    return call
