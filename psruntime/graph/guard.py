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

from psruntime.graph.devices import ps_device
from psruntime.graph.store import (
    APPLIED,
    FENCED,
    LEDGER_SIZE,
    MAX_STALENESS,
    NOT_FINITE,
    RECEIVED,
    REPEATED,
    STALE,
    BucketStore,
    PsControl,
)


@dataclass(frozen=True)
class Push:
    """What identifies a push, as tensors on one ps.

    worker, incarnation, sequence: int64 [].  finite: bool [], whether the loss was.
    """

    worker: Any
    incarnation: Any
    sequence: Any
    finite: Any


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
    with tf1.device(ps_device(store.bucket.ps)), tf1.name_scope(f"guard/{store.bucket.name}/"):
        inputs = [push.worker, push.incarnation, push.sequence, push.finite, pulled_version, *arrived]
        with tf1.control_dependencies(inputs):
            lock = tf1.raw_ops.MutexLock(mutex=store.mutex)
        with tf1.control_dependencies([lock]):
            staleness = store.version.read_value() - pulled_version
            last_push = store.pushed.sparse_read(push.worker)
            ledger = store.ledger.read_value()
            verdict = _verdict(control, push, staleness, last_push)
            applied = tf1.equal(verdict, APPLIED)
            update = apply(lambda tensor: tf1.raw_ops.Switch(data=tensor, pred=applied).output_true)
        with tf1.control_dependencies([_settled(applied, update)]):
            books = _write_books(store, push, ledger, verdict, applied, staleness, last_push)
        with tf1.control_dependencies(books):
            unlock = tf1.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        with tf1.control_dependencies([unlock]):
            return tf1.stack([verdict, staleness]), unlock


def _verdict(control: PsControl, push: Push, staleness: Any, last_push: Any) -> Any:
    """APPLIED, or why not, int64 [].

    A negative staleness (the bucket was made anew since the pull) is refused like one over the limit.
    """
    fenced = tf1.not_equal(control.admitted.sparse_read(push.worker), push.incarnation)
    repeated = tf1.logical_and(tf1.equal(last_push[0], push.incarnation), push.sequence <= last_push[1])
    stale = tf1.logical_or(staleness > control.max_staleness.read_value(), staleness < 0)
    verdict = tf1.where(stale, _cause(STALE), _cause(APPLIED))
    verdict = tf1.where(push.finite, verdict, _cause(NOT_FINITE))
    verdict = tf1.where(repeated, _cause(REPEATED), verdict)
    return tf1.where(fenced, _cause(FENCED), verdict)


def _settled(applied: Any, update: Any) -> Any:
    """A tensor that is there once the update has run, or has been passed over."""
    passed_over = tf1.raw_ops.Switch(data=applied, pred=applied).output_false
    with tf1.control_dependencies([update]):
        ran = tf1.identity(applied)
    return tf1.raw_ops.Merge(inputs=[passed_over, ran]).output


def _write_books(
    store: BucketStore, push: Push, ledger: Any, verdict: Any, applied: Any, staleness: Any, last_push: Any
) -> list[Any]:
    """Version, ledger and last push of the worker, as operations."""
    counts = (
        ledger
        + tf1.one_hot(verdict, LEDGER_SIZE, dtype=tf1.int64)
        + tf1.one_hot(RECEIVED, LEDGER_SIZE, dtype=tf1.int64)
    )
    peak = tf1.one_hot(MAX_STALENESS, LEDGER_SIZE, dtype=tf1.int64) * tf1.where(applied, staleness, _cause(0))
    this_push = tf1.where(applied, tf1.stack([push.incarnation, push.sequence]), last_push)
    return [
        store.version.assign_add(tf1.cast(applied, tf1.int64), read_value=False),
        store.ledger.assign(tf1.maximum(counts, peak), read_value=False),
        tf1.raw_ops.ResourceScatterUpdate(resource=store.pushed.handle, indices=push.worker, updates=this_push),
    ]


def _cause(code: int) -> Any:
    return tf1.constant(code, tf1.int64)
