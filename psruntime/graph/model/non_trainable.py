"""Variables that are not trainable: each has a ps copy and, unless it is a table, a worker copy on every worker.

A worker copy belongs to its worker: the model's updates change it (moving averages), and no other worker reads it.
A checkpoint saves the ps copy: the chief writes its worker copies there when a checkpoint is due, and a worker
reads its own from there when it joins and after every restore.  In between they outlive its sessions, and the change
of its graph with the mode: a variable of a worker's server is the same one in each of its graphs.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.plan.plan import Plan
from psruntime.graph.base.graphs import uses_of
from psruntime.graph.base.server import ps_device, worker_device
from psruntime.graph.base.types import Array, Feed, Op, Session, Tensor, Variable
from psruntime.graph.base.variable_values import LASTING, worker_variable
from psruntime.graph.buckets.bucket_store import ps_variable
from psruntime.graph.model.capture import Captured


class PsCopies:
    """The copies on the ps, by the name of the variable: [shape of the model's variable].

    ps_of: name -> the ps that it is on.
    stamp: int64 [] on ps 0, another number after every restore.
    """

    def __init__(self, plan: Plan) -> None:
        self.variables: dict[str, Variable] = {}
        self.ps_of = {copy.name: copy.ps for copy in plan.copies}
        for copy in plan.copies:
            with tf1.device(ps_device(copy.ps)):
                self.variables[copy.name] = ps_variable(
                    f"home/{copy.name}", copy.master_shape, tf1.as_dtype(copy.dtype)
                )
        with tf1.device(ps_device(0)):
            self.stamp = ps_variable("home_stamp", [])


class WorkerCopies:
    """The copies of worker `index`, in the graph that is being built.

    changed: names of the copies that the model changes -> names of the operations that do.
    own: of `changed`, those that are no moving averages, and so differ from worker to worker in more than noise.
    touching: names of all operations of the model that read or change one of those.
    stamps: int64 [] each, that on ps 0, and that of the copies that this worker read last, 0 before.
    writes: (ps, operation there) for everything that writes there.
    """

    def __init__(self, ps_copies: PsCopies, captured: Captured, index: int) -> None:
        copies, own = captured.copies, captured.own_operations
        on_ps = ps_copies.variables
        self.changed = {
            name: changing
            for name, copy in copies.items()
            if (changing := {use.operation for use in uses_of(copy.handle, own[name]) if use.changes})
        }
        self.own = [name for name, changing in self.changed.items() if not _is_average(copies[name], changing)]
        touching = [use.operation for name in self.changed for use in uses_of(copies[name].handle, own[name])]
        self.touching = sorted(set(touching))
        with tf1.device(worker_device(index)):
            taken = worker_variable("stamp_taken", [], tf1.int64, lasting=True)
            none = tf1.constant(0, tf1.int64)
            self.stamps = [
                ps_copies.stamp.read_value(),
                tf1.cond(taken.is_initialized(), taken.read_value, lambda: none),
            ]
            self._take = [copy.assign(on_ps[name].read_value(), read_value=False) for name, copy in copies.items()]
            written = {name: _write_back(copy, on_ps[name]) for name, copy in copies.items()}
            self._restored = tf1.placeholder(tf1.int64, [], name="home_stamp")
        self._write_stamp = ps_copies.stamp.assign(self._restored, read_value=False)
        self._write_back = {name: is_finite for name, (is_finite, _) in written.items()}
        self.writes = [(ps_copies.ps_of[name], write) for name, (_, write) in written.items()]
        self.writes.append((0, self._write_stamp))
        self._take_stamp = taken.assign(self.stamps[0], read_value=False)
        self._lasting = tf1.get_collection_ref(LASTING)

    def restored(self, write: Callable[[Op, Feed], None]) -> None:
        """Marks the copies on the ps as initialised or restored, so that every worker reads them.

        write: runs operations that write, with a feed.
        """
        write(self._write_stamp, {self._restored: secrets.randbelow(1 << 62) + 1})

    def take(self, session: Session) -> None:
        """At the start of a session, reads the copies from the ps and initialises the worker's other lasting variables.

        Only if the ps were initialised or restored since this worker did so last.
        """
        stamp, taken = session.run(self.stamps)
        if stamp != taken:
            session.run([self._take, [variable.initializer for variable in self._lasting]])
            session.run(self._take_stamp)

    def write_back(self, write: Callable[[Any], dict[str, Array]]) -> list[str]:
        """Writes this worker's copies to the ps.  Returns the names of those that are not finite, and not written.

        write: runs fetches that write.
        """
        return [name for name, is_finite in write(self._write_back).items() if not is_finite]


def _is_average(copy: Variable, changing: Collection[str]) -> bool:
    """Whether a copy is a moving average.

    The layers of TensorFlow and Keras make theirs with aggregation MEAN, to be combined when they are read; those of
    tf.train.ExponentialMovingAverage are recognised by the names of the operations that change them.
    """
    is_of_layer = (copy.aggregation, copy.synchronization) == (
        tf1.VariableAggregation.MEAN,
        tf1.VariableSynchronization.ON_READ,
    )
    return is_of_layer or all("AssignMovingAvg" in name or "AssignNewValue" in name for name in changing)


def _write_back(copy: Variable, on_ps: Variable) -> tuple[Tensor, Op]:
    """(whether the copy is finite, bool []; the operation that writes it, which has run by then)."""
    value = copy.read_value()
    is_finite = tf1.reduce_all(tf1.is_finite(value)) if value.dtype.is_floating else tf1.constant(True)
    written = on_ps.assign(tf1.where(is_finite, value, on_ps.read_value()), read_value=False)
    with tf1.control_dependencies([written]):
        return tf1.identity(is_finite), written
