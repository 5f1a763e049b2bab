"""Errors of TensorFlow's sessions: which ones mean a lost session, and what to say of any of them in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf1

_HEADING = re.compile(r":$|^\d+ root error\(s\) found\.$")
_CODE = re.compile(r"^\(\d+\) [A-Z_]+: ")  # of one of several root errors
LOST_SESSION = (tf1.errors.AbortedError, tf1.errors.UnavailableError)  # what MonitoredSession recovers from


def or_lost(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a run of a session.  Raises one of `LOST_SESSION` for every way in which a lost ps ends a run."""
    try:
        return call(*args, **kwargs)
    except (tf1.errors.CancelledError, tf1.errors.DeadlineExceededError) as error:
        raise tf1.errors.UnavailableError(error.node_def, error.op, error.message) from error
    except UnicodeDecodeError as error:  # a session that another process took over may fail with raw bytes
        raise tf1.errors.UnavailableError(None, None, "TensorFlow failed with a text that is not UTF-8") from error


def first_line(error: Exception) -> str:
    """The line of a TensorFlow error that says what happened, without where the operation was made and ran."""
    lines = [line.strip() for line in str(getattr(error, "message", error)).splitlines()]
    heads = [number for number, line in enumerate(lines) if line.startswith("Node: ")]
    lines = lines[heads[-1] + 1 :] if heads else lines
    telling = (line for line in lines if line.strip("=") and not _HEADING.search(line))
    return _CODE.sub("", next(telling, type(error).__name__))
