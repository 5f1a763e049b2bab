"""Runs of a session with hooks around them, as TensorFlow's MonitoredSession makes them, at less cost.

TensorFlow takes the fetches and feeds of every run apart anew.  Here that is done once for runs that ask for the same:
tensors, operations and variables, in lists, tuples and dicts, with arrays, numbers and lists of them as feeds.  Other
runs, and those with options or metadata, are TensorFlow's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
from tensorflow.python.training.monitored_session import _HookedSession

MOST_CALLS = 256  # of a session, that are remembered
ELEMENTS = (tf1.Tensor, tf1.Operation, tf.Variable)
NUMBERS = "biufc"  # kinds of dtypes between which numpy converts, as TensorFlow's run does


class Call(NamedTuple):
    """A way to call the session.  elements: what it fetches, which keep their identities as long as this is there.

    run: takes the values of the feeds; None: TensorFlow has to look at fetches and feeds itself.
    """

    elements: Sequence[Any]
    run: Callable[..., Any] | None


class HookedSession(_HookedSession):  # type: ignore[misc]
    """As TensorFlow's.  session: a ViewSession.  `run` may be called by several threads."""

    def __init__(self, session: Any, hooks: Sequence[Any]) -> None:
        super().__init__(session, hooks)
        self._should_stop: bool = False
        self._calls: dict[Hashable, Call] = {}

    def run(self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        if self.should_stop():
            raise RuntimeError("Run called even after should_stop requested.")
        asked = {"caller": fetches}
        context = tf1.train.SessionRunContext(tf1.train.SessionRunArgs(fetches, feed_dict), self._sess)
        all_options = options or tf1.RunOptions()
        feeds = self._call_hook_before_run(context, asked, feed_dict, all_options) or {}
        metadata = run_metadata or tf1.RunMetadata()
        is_plain = options is None and run_metadata is None and not all_options.ByteSize()
        call = self._call(asked, feeds) if is_plain else None
        results = call() if call else self._sess.run(asked, feeds, all_options, metadata)
        for hook in self._hooks:
            hook.after_run(context, tf1.train.SessionRunValues(results.get(hook), all_options, metadata))
        self._should_stop = self._should_stop or context.stop_requested
        return results["caller"]

    def _call(self, asked: Mapping[Any, Any], feeds: Mapping[Any, Any]) -> Callable[[], Any] | None:
        """What runs it with these feeds; None: TensorFlow has to look at something itself."""
        graph = self._sess.graph
        if not all(isinstance(f, tf1.Tensor) and f.graph is graph and graph.is_feedable(f) for f in feeds):
            return None
        elements: list[Any] = []
        if (key := identity_of(asked, elements)) is None:
            return None
        fed = tuple(map(id, feeds))
        call = self._calls.get((key, fed))
        if call is None:
            if len(self._calls) >= MOST_CALLS:
                self._calls.clear()
            is_fed = not set(fed).isdisjoint(map(id, elements))  # TensorFlow gives the fed value back
            call = Call([*elements, *feeds], None if is_fed else self._sess.calling(asked, tuple(feeds), explains=True))
            self._calls[key, fed] = call
        if call.run is None:
            return None
        values = [_fed(value, feed) for feed, value in feeds.items()]
        return None if any(value is None for value in values) else partial(call.run, *values)


def identity_of(fetches: Any, elements: list[Any]) -> Hashable:
    """What is equal for fetches of the same elements of a graph in the same lists, tuples and dicts.

    Adds the elements to `elements`.  None: there is something else in it, or nothing.
    """
    if isinstance(fetches, ELEMENTS):
        elements.append(fetches)
        return id(fetches)
    kind = type(fetches)
    if kind not in (list, tuple, dict) or not fetches:
        return None
    parts = tuple(identity_of(part, elements) for part in (fetches.values() if kind is dict else fetches))
    return None if None in parts else (kind, tuple(fetches) if kind is dict else (), parts)


def _fed(value: Any, feed: Any) -> Any:
    """What TensorFlow feeds for this value, where it makes an array of it and asks nothing else; else None."""
    dtype = np.dtype(feed.dtype.as_numpy_dtype)
    if isinstance(value, list | tuple) and dtype.kind in NUMBERS:
        try:
            value = np.asarray(value, dtype)
        except (ValueError, TypeError, OverflowError):  # TensorFlow says what is wrong
            return None
    if isinstance(value, np.ndarray | np.generic):
        fits = value.dtype == dtype or (value.dtype.kind in NUMBERS and dtype.kind in NUMBERS)
    elif isinstance(value, float):
        fits = feed.dtype.is_floating
    else:
        is_number = isinstance(value, int) and dtype.kind in NUMBERS
        fits = is_number and np.can_cast(np.min_scalar_type(value), dtype)
    return value if fits and feed.shape.is_compatible_with(np.shape(value)) else None
