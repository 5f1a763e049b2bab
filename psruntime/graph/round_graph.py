"""The sync mode's part of the training graph: keep the gradient, contribute it, close the round.

A worker's weighted gradient goes into variables of its own first.  They outlive the session, so it can be
pushed again when an attempt became void or a session was lost, without computing it a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf1

from psruntime.graph.close import close
from psruntime.graph.contribute import contribute
from psruntime.graph.devices import ps_device, worker_device
from psruntime.graph.gradient_store import GradientStore
from psruntime.graph.gradients import Apply, BucketGradient
from psruntime.graph.header import Arrived, Header
from psruntime.graph.round_store import RoundStore
from psruntime.graph.store import BucketStore, PsControl


class Trained(NamedTuple):
    """A bucket that the model trains: its gradient on the worker, and its update."""

    store: BucketStore
    gradient: BucketGradient
    apply: Apply


@dataclass(frozen=True)
class RoundGraph:
    """Handles.  Lists of one per ps, unless said otherwise.

    stores: every bucket, the global step's included.
    keep: one operation a bucket; writes the gradient of this run's batch into the worker's variables.
    contribute: int64 [buckets, 2], outcomes; pushes what was kept.
    look: (books int64 [buckets, BOOKS_SIZE], sum of squares of the trained buckets' sums, float64 [];
        0 unless there is a clip_norm).
    close: books int64 [buckets, BOOKS_SIZE] after the update.
    """

    stores: list[RoundStore]
    keep: list[Any]
    contribute: list[Any]
    look: list[tuple[Any, Any]]
    close: list[Any]


def build_rounds(
    trained: list[Trained],
    global_step: BucketStore,
    controls: list[PsControl],
    header: Header,
    index: int,
    examples: Any,
    clip_norm: float | None,
    clip_value: float | None,
) -> RoundGraph:
    """Builds it for worker `index`.  The limits are those of the joint gradient, see ModelSpec."""
    num_ps = len(controls)
    per_ps: list[dict[str, list[Any]]] = [
        {"stores": [], "contribute": [], "squares": [], "close": []} for _ in range(num_ps)
    ]
    keep = []
    for store, gradient, apply in trained:
        ps = store.bucket.ps
        rounds = RoundStore(store, gradient.indices is not None)
        with tf1.device(worker_device(index)):
            kept = GradientStore(f"kept/{store.bucket.name}", store.master, gradient.indices is not None)
            keep.append(_keep(kept, gradient, examples))
            pushed = kept.read()
        parts = per_ps[ps]
        parts["stores"].append(rounds)
        parts["contribute"].append(contribute(rounds, controls[ps], header.on[ps].push, pushed))
        if clip_norm is not None:
            with tf1.device(ps_device(ps)):
                parts["squares"].append(rounds.square())
        told = header.on[ps]
        books, _ = close(rounds, controls[ps], told, _joint(rounds, told.factor, clip_value, apply))
        parts["close"].append(books)
    _count_round(global_step, controls[0], header.on[0], per_ps[0])
    return RoundGraph(
        [store for parts in per_ps for store in parts["stores"]],
        keep,
        [_on(ps, tf1.stack, parts["contribute"]) for ps, parts in enumerate(per_ps) if parts["contribute"]],
        [_look(ps, parts) for ps, parts in enumerate(per_ps) if parts["stores"]],
        [_on(ps, tf1.stack, parts["close"]) for ps, parts in enumerate(per_ps) if parts["close"]],
    )


def _keep(kept: GradientStore, gradient: BucketGradient, examples: Any) -> Any:
    """The gradient of the batch's sum instead of its mean; zeros if `examples` is 0, whatever the gradient is."""
    weighted = tf1.cast(gradient.values, kept.dtype) * tf1.cast(examples, kept.dtype)
    return kept.write(gradient.with_values(tf1.where(examples > 0, weighted, tf1.zeros_like(weighted))))


def _joint(
    rounds: RoundStore, factor: Any, clip_value: float | None, apply: Apply
) -> Callable[[Callable[[Any], Any]], Any]:
    """Applies the sum times the factor, in the master's dtype."""

    def update(live: Callable[[Any], Any]) -> Any:
        total = rounds.sum.read().map(live)
        joint = total.values * tf1.cast(factor, total.values.dtype)
        if clip_value is not None:
            joint = tf1.clip_by_value(joint, -clip_value, clip_value)
        return apply(total.with_values(tf1.cast(joint, rounds.store.master.dtype.base_dtype)))

    return update


def _count_round(store: BucketStore, control: PsControl, told: Arrived, parts: dict[str, list[Any]]) -> None:
    """The global step goes up by one a round, by the rule of every bucket."""
    rounds = RoundStore(store, is_sparse=False)
    with tf1.device(ps_device(store.bucket.ps)):
        one = tf1.ones([1], tf1.int64)
    parts["stores"].append(rounds)
    parts["contribute"].append(contribute(rounds, control, told.push, BucketGradient(one)))
    books, _ = close(rounds, control, told, lambda live: store.master.assign_add(live(one), read_value=False))
    parts["close"].append(books)


def _look(ps: int, parts: dict[str, list[Any]]) -> tuple[Any, Any]:
    with tf1.device(ps_device(ps)):
        books = tf1.stack([rounds.look() for rounds in parts["stores"]])
        return books, tf1.add_n(parts["squares"]) if parts["squares"] else tf1.zeros([], tf1.float64)


def _on(ps: int, build: Callable[[Any], Any], tensors: list[Any]) -> Any:
    with tf1.device(ps_device(ps)):
        return build(tensors)
