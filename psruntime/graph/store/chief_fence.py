"""The fence of a chief that prepares variables: once paused, it must not overwrite what its successor prepared.

The ps checks the admission when it writes: between a check of its own and its write a chief may be paused for minutes,
and operations that it has started continue meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import tensorflow.compat.v1 as tf1

from psruntime.core.members.membership import tag_of
from psruntime.errors import ReplacedError
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import Feed, Op, Proto, Session, Tensor
from psruntime.graph.store.bucket_store import PsControl

Built = TypeVar("Built")

NO_WRITER = -1  # as incarnation: the run names no writer, and writes unasked
_ADMITTED_NOWHERE = -2  # no incarnation is negative


class ChiefFence:
    """Admits writes of worker `index` while each ps admits its incarnation; in the current graph.

    unnamed: whether a run that names no writer writes unasked, as those of a script's own code.  Else it fails.
    """

    def __init__(self, controls: Sequence[PsControl], index: int, unnamed: bool = False) -> None:
        self._controls = controls
        self._indices, self._writers, self._is_writer, self._has_no_writer = [], [], [], []
        self._admitted, self._at_once = [], []
        for ps, control in enumerate(controls):
            with tf1.device(ps_device(ps)):
                no_writer = tf1.constant(NO_WRITER, tf1.int64)
                if unnamed:
                    writer = tf1.placeholder_with_default(no_writer, [], name=f"writer_{ps}")
                else:
                    writer = tf1.placeholder(tf1.int64, [], name=f"writer_{ps}")
                self._indices.append(tf1.constant(index))
                self._writers.append(writer)
                self._is_writer.append(writer >= no_writer)
                self._has_no_writer.append(tf1.equal(writer, no_writer))
                self._admitted.append(control.admitted.sparse_read(self._indices[ps]))
            self._at_once.append(self.passed(ps, []))

    def passed(self, ps: int, values: Sequence[Tensor]) -> Op:
        """An operation on the ps that runs when these tensors, of any shape, are there, and fails unless the ps admits
        the writer.

        No optimization of graphs moves the operation that waits for them to another device.
        """
        with tf1.device(ps_device(ps)):
            arrived = [tf1.raw_ops.Assert(condition=self._is_writer[ps], data=list(values))] if values else []
            with tf1.control_dependencies(arrived):
                admitted = tf1.raw_ops.ResourceGather(
                    resource=self._controls[ps].admitted.handle, indices=self._indices[ps], dtype=tf1.int64
                )
            may_write = tf1.logical_or(self._has_no_writer[ps], tf1.equal(self._writers[ps], admitted))
            return tf1.raw_ops.Assert(condition=may_write, data=[self._writers[ps]])

    def guard(self, ps: int, operations: Sequence[Op]) -> None:
        """Makes these operations on the ps, which are built, start only when all their inputs are there and the ps
        admits the writer."""
        values = [tensor for each in operations for tensor in each.inputs if not _is_held(tensor)]
        passed = self.passed(ps, values) if values else self._at_once[ps]
        for operation in operations:
            operation._add_control_input(passed)

    def inside(self, ps: int, body: Callable[[], Built]) -> Callable[[], Built]:
        """The body of a critical section on the ps, which starts only if it admits the writer.

        Placeholders for the body must be made outside: TensorFlow drops the control inputs of fed tensors.
        """

        def fenced() -> Built:
            with tf1.control_dependencies([self.passed(ps, [])]):
                return body()

        return fenced

    def run(self, session: Session, incarnation: int, fetches: Any, feed: Feed | None = None, *more: Proto) -> Any:
        """Runs operations that write, as this incarnation.  feed, more: further arguments of the session's `run`.

        Raises:
            ReplacedError: a ps no longer admits the incarnation.
        """
        try:
            return session.run(fetches, {**(feed or {}), **dict.fromkeys(self._writers, incarnation)}, *more)
        except tf1.errors.InvalidArgumentError:
            self.require_admitted(session, incarnation)
            raise

    def warm_up(self, session: Session, fetches: Any, feed: Feed | None = None) -> None:
        """Makes a session ready for `run`, and writes nothing: no ps admits its incarnation.  feed: also fed by it."""
        with suppress(tf1.errors.InvalidArgumentError):
            session.run(fetches, {**(feed or {}), **dict.fromkeys(self._writers, _ADMITTED_NOWHERE)})

    def require_admitted(self, session: Session, incarnation: int) -> None:
        """Checks that every ps still admits this incarnation.

        Raises:
            ReplacedError: a ps no longer does.
        """
        for ps, admitted in enumerate(session.run(self._admitted)):
            if admitted != incarnation:
                tag = tag_of(incarnation)
                raise ReplacedError(f"ps {ps} does not admit incarnation {tag}: another chief may be at work")


class FencedSession:
    """A session that writes as this incarnation, for code that runs operations of its own in a session."""

    def __init__(self, session: Session, fence: ChiefFence, incarnation: int) -> None:
        self._session, self._fence, self._incarnation = session, fence, incarnation

    def run(
        self, fetches: Any, feed_dict: Feed | None = None, options: Proto = None, run_metadata: Proto = None
    ) -> Any:
        """As tf.Session.  Raises ReplacedError, as ChiefFence.run."""
        return self._fence.run(self._session, self._incarnation, fetches, feed_dict, options, run_metadata)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def _is_held(tensor: Tensor) -> bool:
    """Whether it stands for a variable, which stays where it is."""
    return tensor.dtype in (tf1.resource, tf1.variant) or tensor.dtype._is_ref_dtype
