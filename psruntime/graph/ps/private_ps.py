"""The ps of one worker alone, in its own process: it trains on them by itself, and no other worker knows of them."""

from __future__ import annotations

import tensorflow.compat.v1 as tf1

from psruntime.core.members.view import PsEntry, View
from psruntime.graph.base.server import start_server
from psruntime.graph.ps.ps_state import PsState

HOST = "127.0.0.1"  # at which the worker reaches them; TensorFlow's servers listen at every address


class PrivatePs:
    """As many as the job has.  TensorFlow's servers never end, so they are kept, empty, when nobody trains on them."""

    def __init__(self, num_ps: int) -> None:
        self._servers = [start_server("ps", ps, HOST, 0) for ps in range(num_ps)]
        self._states: list[PsState] = []
        self._views = 0

    def begin(self, worker: int, incarnation: int, max_workers: int, learning_rate_scale: float) -> View:
        """A new view of them, empty, in which this worker is admitted.  The rest as in PsState."""
        self.clear()
        self._views += 1
        for ps, (server, _) in enumerate(self._servers):
            self._states.append(PsState(server.target, ps, max_workers))
            self._states[ps].write_fence({worker: incarnation}, None, learning_rate_scale)
        entries = (PsEntry(ps, address, self._views) for ps, (_, address) in enumerate(self._servers))
        return View(self._views, tuple(entries))

    def clear(self) -> None:
        """Gives all their memory back; their sessions are closed then."""
        self._states.clear()
        for server, _ in self._servers:
            tf1.Session.reset(server.target)
