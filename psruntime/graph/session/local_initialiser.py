"""Local variables and tables, which every session has to initialise."""

from __future__ import annotations

from contextlib import suppress

import tensorflow.compat.v1 as tf1

from psruntime.faults import Place
from psruntime.graph.base.failed_operation import users_errors
from psruntime.graph.base.types import Graph, Session


class LocalInitialiser:
    """Initialises those of a graph, to which it adds operations."""

    def __init__(self, graph: Graph) -> None:
        with graph.as_default():
            each = [variable.initializer for variable in tf1.local_variables()]
            each += tf1.get_collection(tf1.GraphKeys.TABLE_INITIALIZERS)
            self._begins = tf1.placeholder_with_default(True, [], name="begins")
            begun = tf1.raw_ops.Assert(condition=self._begins, data=[self._begins])
            for operation in set(each):
                operation._add_control_input(begun)
            self._operation = tf1.group(*each)
        self._place = Place.BUILD

    def __call__(self, session: Session) -> None:
        """Raises UsageError if the model makes a table or a variable of what cannot be: a file that is not there.

        In a later session it was there before, and its lack is one of the machine.
        """
        with users_errors(session.graph, self._place):
            session.run(self._operation, {self._begins: True})  # fed as in a warm-up, or it would be another run
        self._place = Place.STEP

    def warm_up(self, session: Session) -> None:
        """Makes a session ready for it, and initialises nothing: the variables are those of all its sessions."""
        with suppress(tf1.errors.InvalidArgumentError):
            session.run(self._operation, {self._begins: False})
