"""The guard: one bucket's update, from arrival to ledger, under the bucket's mutex.

Version read, decision, apply, version += 1 and ledger are one critical section: without the mutex, of
345 concurrent updates 154 slipped over their limit.  It is entered only when everything that comes from
the worker has arrived, so a worker that dies in the middle of a step holds nobody up.

A refused gradient becomes a dead tensor (Switch): the apply and whatever the optimizer does after it do
not run, an exact no-op for this bucket alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.ledger import (
    APPLIED,
    FENCED,
    LEDGER_SIZE,
    MAX_STALENESS,
    NOT_FINITE,
    RECEIVED,
    REPEATED,
    STALE,
)
from psruntime.graph.base.devices import ps_device
from psruntime.graph.store.bucket_store import (
    ACCEPTED,
    ARRIVED,
    ORIGIN,
    PUSHED_SIZE,
    SEQUENCE,
    WINDOW,
    BucketStore,
    PsControl,
)
from psruntime.graph.store.gradient import BucketGradient
from psruntime.graph.store.push_window import is_in, with_one_more

PUSH_ID_SIZE = 4


@dataclass(frozen=True)
class Push:
    """What identifies a push, as tensors on one ps.

    worker, incarnation, sequence: int64 [].  finite: bool [], whether the loss was.
    origin: int64 [], whose sequence numbers these are: of a process, which may be admitted again as another
        incarnation and then repeats what was interrupted.
    """

    worker: Any
    incarnation: Any
    sequence: Any
    finite: Any
    origin: Any

    @classmethod
    def of(cls, push_id: Any, finite: Any) -> Push:
        """push_id: int64 [4] = (worker, incarnation, sequence, origin)."""
        worker, incarnation, sequence, origin = (push_id[i] for i in range(PUSH_ID_SIZE))
        return cls(worker, incarnation, sequence, finite, origin)

    @property
    def tensors(self) -> list[Any]:
        """All that must have arrived."""
        return [self.worker, self.incarnation, self.sequence, self.finite, self.origin]


def guarded_update(
    store: BucketStore,
    control: PsControl,
    push: Push,
    pulled_version: Any,
    arrived: list[Any],
    apply: Callable[[Callable[[Any], Any]], Any],
) -> tuple[Any, Any]:
    """Builds the update of one bucket on its ps.

    `apply(live)` builds the update; it passes each tensor that the update depends on through `live`.
    `arrived` are those tensors.

    Returns:
        (outcome, update): outcome int64 [2] = (APPLIED or the cause of the drop, staleness in versions);
        update an operation that has run when the ledger is written.
    """

    def decide_and_apply() -> tuple[Any, list[Any]]:
        staleness = store.version.read_value() - pulled_version
        last_push = store.pushed.sparse_read(push.worker)
        ledger = store.ledger.read_value()
        # A negative staleness (the bucket was made anew since the pull) is refused like one over the limit.
        stale = tf1.logical_or(staleness > control.max_staleness.read_value(), staleness < 0)
        otherwise = tf1.where(push.finite, tf1.where(stale, code(STALE), code(APPLIED)), code(NOT_FINITE))
        verdict = refusal(control, push, last_push, otherwise)
        applied = tf1.equal(verdict, APPLIED)
        update = apply(lambda tensor: only_if(applied, tensor))
        with tf1.control_dependencies([settled(applied, [update])]):
            books = _write_books(store, push, ledger, verdict, applied, staleness, last_push)
        return tf1.stack([verdict, staleness]), books

    with tf1.name_scope(f"guard/{store.bucket.name}/"):
        inputs = [*push.tensors, pulled_version, *arrived]
        return locked(store, inputs, decide_and_apply)


def locked(store: BucketStore, arrived: list[Any], body: Callable[[], tuple[Any, list[Any]]]) -> tuple[Any, Any]:
    """Builds `body()` on the bucket's ps, as a critical section that begins when the `arrived` tensors are there.

    `body` returns a tensor and the operations that end the section.  What comes from a worker must be a copy on
    the ps (`at_hand`), also where the body uses it: TensorFlow moves a Switch to the device of its data, and the
    data would travel while the lock is held.

    TensorFlow's mutex is let go of when a run that waits for it is cancelled, as when its worker dies, although
    another one holds it.  So there is a second one behind the first, for which only that one waits who was let in so.

    Returns:
        (that tensor once the section has ended, an operation that has run by then).
    """
    with tf1.device(ps_device(store.bucket.ps)):
        with tf1.control_dependencies(arrived):
            turn = tf1.raw_ops.MutexLock(mutex=store.turn)
        with tf1.control_dependencies([turn]):
            lock = tf1.raw_ops.MutexLock(mutex=store.mutex)
        with tf1.control_dependencies([lock]):
            result, last = body()
        with tf1.control_dependencies(last):
            unlock = tf1.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        with tf1.control_dependencies([unlock]):
            ended = tf1.raw_ops.ConsumeMutexLock(mutex_lock=turn)
        with tf1.control_dependencies([ended]):
            return tf1.identity(result), ended


def at_hand(store: BucketStore, gradient: BucketGradient, dtype: Any) -> BucketGradient:
    """A copy of the gradient on the bucket's ps, its values in this dtype."""
    with tf1.device(ps_device(store.bucket.ps)):
        copy = gradient.map(tf1.identity)
        return copy.with_values(tf1.cast(copy.values, dtype))


def refusal(control: PsControl, push: Push, last_push: Any, otherwise: Any) -> Any:
    """FENCED or REPEATED where the push is one, else the code `otherwise`; int64 []."""
    known = is_in(last_push[WINDOW], last_push[SEQUENCE], push.sequence)
    repeated = tf1.logical_and(tf1.equal(last_push[ORIGIN], push.origin), known)
    return tf1.where(is_fenced(control, push), code(FENCED), tf1.where(repeated, code(REPEATED), otherwise))


def is_fenced(control: PsControl, push: Push) -> Any:
    """Whether the ps does not admit the pushing incarnation, bool []."""
    return tf1.not_equal(control.admitted.sparse_read(push.worker), push.incarnation)


def only_if(condition: Any, tensor: Any) -> Any:
    """The tensor, dead unless the condition holds: what depends on it, or waits for it, does not run then.

    A Switch itself is never dead, only its outputs are; hence the identity, which can be waited for.
    """
    return tf1.identity(tf1.raw_ops.Switch(data=tensor, pred=condition).output_true)


def settled(condition: Any, branches: list[Any]) -> Any:
    """A tensor that is there once one of the branches has run, or once it is clear that the condition fails.

    The branches are operations that are dead unless the condition holds; if it does, exactly one runs.
    """
    inputs = [tf1.raw_ops.Switch(data=condition, pred=condition).output_false]
    for branch in branches:
        with tf1.control_dependencies([branch]):
            inputs.append(tf1.identity(condition))
    return tf1.raw_ops.Merge(inputs=inputs).output


def code(column: int) -> Any:
    """A column of the ledger as an outcome, int64 []."""
    return tf1.constant(column, tf1.int64)


def _write_books(
    store: BucketStore, push: Push, ledger: Any, verdict: Any, applied: Any, staleness: Any, last_push: Any
) -> list[Any]:
    """Version, ledger and last push of the worker, as operations."""
    peak = one(MAX_STALENESS) * tf1.where(applied, staleness, code(0))
    return [
        store.version.assign_add(tf1.cast(applied, tf1.int64), read_value=False),
        store.ledger.assign(tf1.maximum(ledger + one(RECEIVED) + one(verdict), peak), read_value=False),
        remember(store, push, last_push, applied),
    ]


def one(column: Any) -> Any:
    """1 in this column of a ledger, int64 [LEDGER_SIZE]."""
    return tf1.one_hot(column, LEDGER_SIZE, dtype=tf1.int64)


def remember(store: BucketStore, push: Push, last_push: Any, accepted: Any) -> Any:
    """An operation that writes a push that arrived, and was accepted or not, into the worker's row."""
    same = tf1.equal(last_push[ORIGIN], push.origin)
    window = tf1.where(same, last_push[WINDOW], code(0))
    highest = tf1.where(same, last_push[SEQUENCE], push.sequence)
    window, highest = with_one_more(window, highest, push.sequence)
    this_push = tf1.stack([push.origin, highest, window, last_push[ACCEPTED] + 1, last_push[ARRIVED]])
    row = tf1.where(accepted, this_push, last_push) + tf1.one_hot(ARRIVED, PUSHED_SIZE, dtype=tf1.int64)
    return tf1.raw_ops.ResourceScatterUpdate(resource=store.pushed.handle, indices=push.worker, updates=row)
