"""The sessions of a script, one after the other: made ready with the user's Scaffold, on the view of now."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.classic.placement import outside_scopes, place_rest
from psruntime.classic.prepare import ScaffoldPreparation
from psruntime.core.members.messages import Assignment
from psruntime.graph.session.session import ViewSessionCreator


class ScriptSessions(tf1.train.SessionCreator):  # type: ignore[misc]
    """Makes the sessions of a MonitoredSession.

    make: called once, after every hook's `begin` and before the graph is finalized; it may add to the graph, and
    gives the preparation and the creator of the sessions themselves.  patience: surrounds each wait for a session.
    """

    def __init__(
        self,
        scaffold: Any,
        index: int,
        make: Callable[[], tuple[ScaffoldPreparation, ViewSessionCreator]],
        patience: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.session: Any = None  # the newest one
        self._scaffold = scaffold
        self._index = index
        self._make = make
        self._patience = patience
        self._views: ViewSessionCreator | None = None

    @property
    def assignment(self) -> Assignment:
        """The assignment of the newest session."""
        assert self._views is not None
        return self._views.assignment

    def create_session(self) -> Any:
        if self._views is None:
            with outside_scopes():
                preparation, self._views = self._make()
                _add_saver(self._scaffold)
                self._scaffold.finalize()
                preparation.guard_writes()
            place_rest(tf1.get_default_graph(), self._index)
        with self._patience():
            self.session = self._views.create_session()
        return self.session

    def renew(self) -> None:
        """Closes the newest session and opens one on the view of now, with no hook in it."""
        self.session.close()
        self.create_session()


def _add_saver(scaffold: Any) -> None:
    """Stock's default saver writes on the ps; ours on the worker, which need not share a disk with them."""
    if scaffold.saver is None and not tf1.get_collection(tf1.GraphKeys.SAVERS):
        tf1.add_to_collection(tf1.GraphKeys.SAVERS, tf1.train.Saver(allow_empty=True))
