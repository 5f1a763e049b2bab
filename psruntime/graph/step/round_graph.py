"""The sync mode's part of the training graph: close the round before, keep the gradient, contribute it.

A worker's gradient goes into variables of its own first.  They outlive the session, so it can be
pushed again when an attempt became void or a session was lost, without computing it a second time.

A step closes the round before on each bucket before it reads that: the first of the members to come does, the others
find it done.  So a round costs no run and no message of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.devices import ps_device, worker_device
from psruntime.graph.step.error_feedback import packed_gradient
from psruntime.graph.store.apply import Apply
from psruntime.graph.store.bucket_store import BucketStore, PsControl
from psruntime.graph.store.gradient import BucketGradient
from psruntime.graph.store.gradient_store import GradientStore
from psruntime.graph.store.round_sum import RoundStore, close, contribute
from psruntime.graph.store.step_messages import Arrived, Header, Outcomes
from psruntime.graph.store.wire import Wire


class Trained(NamedTuple):
    """A bucket that the model trains: its gradient on the worker, and its update."""

    store: BucketStore
    gradient: BucketGradient
    apply: Apply


@dataclass(frozen=True)
class RoundGraph:
    """Handles.  Lists of one per ps, unless said otherwise.

    stores: every bucket, the global step's included.
    step: fetches of a training step, {"kept": operations, "outcomes": int64 [buckets, 2], "global_step": int64 []};
        it writes the gradient of its batch into the worker's variables, and contributes it.
    header: what to feed to all others; a step is fed it too, and tells with it what it closes.
    contribute: int64 [buckets, 2], outcomes; pushes what was kept.
    squares: sum of squares of the sums of all examples' gradients, float64 []; none unless there is a clip_norm.
    close: books int64 [buckets, BOOKS_SIZE] after the update.
    after_close: bucket name -> operation after which the bucket is closed, if it was to be.
    """

    stores: list[RoundStore]
    step: dict[str, Any]
    header: Header
    contribute: list[Any]
    squares: list[Any]
    close: list[Any]
    after_close: dict[str, Any]


def build_rounds(
    trained: list[Trained],
    global_step: BucketStore,
    controls: list[PsControl],
    headers: tuple[Header, Header],
    index: int,
    examples: Any,
    wire: Wire,
    clip_norm: float | None,
    clip_value: float | None,
) -> RoundGraph:
    """Builds it for worker `index`.

    headers: of a step, and of what runs without a batch, where it is fed whether the loss was finite.
    examples: what the batch weighs, float64 [].
    The limits are those of the joint gradient, see ModelSpec.
    """
    of_step, header = headers
    per_ps: list[dict[str, list[Any]]] = [
        {"stores": [], "contribute": [], "squares": [], "close": []} for _ in controls
    ]
    keep = []
    after_close: dict[str, Any] = {}
    outcomes = Outcomes(len(controls))
    for store, gradient, apply in trained:
        ps = store.bucket.ps
        rounds = RoundStore(store, gradient.indices is not None)
        sent = packed_gradient(wire, store.bucket.name, gradient, examples > 0, index)
        with tf1.device(worker_device(index)):
            is_sparse = gradient.indices is not None
            kept = GradientStore(f"kept/{store.bucket.name}", store.master, sent.values.dtype, is_sparse)
            keep.append(kept.write(sent))
            pushed = kept.read()
        now, told = of_step.on[ps], header.on[ps]
        books, after_close[store.bucket.name] = close(
            rounds, controls[ps], told, _joint(rounds, told.factor, clip_value, apply)
        )
        outcomes.add(ps, contribute(rounds, controls[ps], now.push, sent, now.unit, books))
        parts = per_ps[ps]
        parts["stores"].append(rounds)
        parts["contribute"].append(contribute(rounds, controls[ps], told.push, pushed, told.unit))
        if clip_norm is not None:
            with tf1.device(ps_device(ps)):
                parts["squares"].append(rounds.square())
        parts["close"].append(books)
    outcome, counted = _count_round(global_step, controls[0], of_step.on[0], header.on[0], per_ps[0])
    after_close[global_step.bucket.name] = counted
    outcomes.add(0, outcome)
    with tf1.control_dependencies([counted]):
        count = global_step.master.read_value()[0]
    became, count = outcomes.bring(count, index)
    return RoundGraph(
        [store for parts in per_ps for store in parts["stores"]],
        {"kept": keep, "outcomes": became, "global_step": count},
        header,
        [_on(ps, tf1.stack, parts["contribute"]) for ps, parts in enumerate(per_ps) if parts["contribute"]],
        [_on(ps, tf1.add_n, parts["squares"]) for ps, parts in enumerate(per_ps) if parts["squares"]],
        [_on(ps, tf1.stack, parts["close"]) for ps, parts in enumerate(per_ps) if parts["close"]],
        after_close,
    )


def _joint(
    rounds: RoundStore, factor: Any, clip_value: float | None, apply: Apply
) -> Callable[[Callable[[Any], Any]], Any]:
    """Applies the sum of all examples' gradients times the factor, in the master's dtype."""

    def update(live: Callable[[Any], Any]) -> Any:
        mean = rounds.mean(factor, live)
        joint = mean.values
        if clip_value is not None:
            joint = tf1.clip_by_value(joint, -clip_value, clip_value)
        return apply(mean.with_values(tf1.cast(joint, rounds.store.master.dtype.base_dtype)))

    return update


def _count_round(
    store: BucketStore, control: PsControl, of_step: Arrived, told: Arrived, parts: dict[str, list[Any]]
) -> tuple[Any, Any]:
    """The global step goes up by one a round, by the rule of every bucket.

    Returns:
        (the outcome of a step's contribution, an operation after which the round before is counted).
    """
    rounds = RoundStore(store, is_sparse=False)
    with tf1.device(ps_device(store.bucket.ps)):
        one = tf1.ones([1], tf1.int64)
    parts["stores"].append(rounds)
    parts["contribute"].append(contribute(rounds, control, told.push, BucketGradient(one), told.unit))
    books, counted = close(rounds, control, told, lambda live: store.master.assign_add(live(one), read_value=False))
    parts["close"].append(books)
    return contribute(rounds, control, of_step.push, BucketGradient(one), of_step.unit, books), counted


def _on(ps: int, build: Callable[[Any], Any], tensors: list[Any]) -> Any:
    with tf1.device(ps_device(ps)):
        return build(tensors)
