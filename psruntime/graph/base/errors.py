"""Errors of TensorFlow's sessions: which ones mean a lost session, and one line for any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.faults import first_line as first_line

LOST_SESSION = (tf1.errors.AbortedError, tf1.errors.UnavailableError)  # what MonitoredSession recovers from


def or_lost(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a run of a session.  Raises one of `LOST_SESSION` for every way in which a lost ps ends a run."""
    try:
        return call(*args, **kwargs)
    except (tf1.errors.CancelledError, tf1.errors.DeadlineExceededError) as error:
        raise tf1.errors.UnavailableError(error.node_def, error.op, error.message) from error
    except UnicodeDecodeError as error:  # a session that another process took over may fail with raw bytes
        raise tf1.errors.UnavailableError(None, None, "TensorFlow failed with a text that is not UTF-8") from error
