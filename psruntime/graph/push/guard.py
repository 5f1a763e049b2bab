"""The guard: decides about a push on a section of a ps, under the section's mutex, and counts what became of it.

Reading the versions, deciding, updating, version += 1 and the ledgers are one critical section: without the mutex, of
345 concurrent updates 154 slipped over their limit.  It is entered only when everything that comes from
the worker has arrived, so a worker that dies in the middle of a step delays no other.  A section that has begun ends
also when its worker is killed: TensorFlow lets operations run whose inputs are there.

A refused gradient becomes a dead tensor (Switch): the updates and whatever the optimizers do after them do not run, an
exact no-op for the buckets of this section alone.

Several pushes of a worker are under way, and may arrive in any order.  Which of them a section has accepted it knows by
the window against replays of IPsec (RFC 4303, section 3.4.3): the highest sequence number so far, and a bit for each of
those up to it.  What is older than the window counts as accepted; a worker never has that many under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import (
    APPLIED,
    FENCED,
    MAX_STALENESS,
    NOT_FINITE,
    RECEIVED,
    REPEATED,
    STALE,
)
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import DType, Op, Tensor
from psruntime.graph.base.variable_values import write_rows
from psruntime.graph.buckets.apply import StalenessWeight, Update
from psruntime.graph.buckets.bucket_store import (
    ORIGIN,
    SEQUENCE,
    WINDOW,
    BucketSection,
    BucketStore,
    Numbers,
    PsControl,
)
from psruntime.graph.buckets.gradient import BucketGradient
from psruntime.graph.push.step_messages import Push, ReceivedPush

WINDOW_SIZE = 62  # sequence numbers; as many bits of an int64 as are safe to shift
ALL = (1 << WINDOW_SIZE) - 1


def is_in(window: Tensor, highest: Tensor, sequence: Tensor, numbers: Numbers) -> Tensor:
    """Whether the sequence number was accepted before; bool [].  All are int64 []."""
    age = highest - sequence
    bit = tf1.bitwise.bitwise_and(tf1.bitwise.right_shift(window, _within(age, numbers)), numbers(1))
    older = age >= numbers(WINDOW_SIZE)
    return tf1.logical_and(age >= numbers(0), tf1.logical_or(older, tf1.equal(bit, numbers(1))))


def with_one_more(window: Tensor, highest: Tensor, sequence: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor]:
    """(window, highest sequence number) once `sequence` is accepted, which is not in the window yet; int64 [] all."""
    ahead, behind = _within(sequence - highest, numbers), _within(highest - sequence, numbers)
    kept = tf1.bitwise.bitwise_and(tf1.bitwise.left_shift(window, ahead), numbers(ALL))
    return tf1.bitwise.bitwise_or(kept, tf1.bitwise.left_shift(numbers(1), behind)), tf1.maximum(highest, sequence)


def _within(distance: Tensor, numbers: Numbers) -> Tensor:
    return tf1.clip_by_value(distance, numbers(0), numbers(WINDOW_SIZE))


Body = Callable[[], tuple[Tensor, list[Op]]]  # builds what is done in a critical section, see `locked`


class PushedBucket(NamedTuple):
    """A bucket of a push: its gradient, a copy on the ps (`copied_to_ps`), and what is done with it.

    update: builds the update from the gradient, which is dead if the guard refuses it.
    by_staleness: lowers the learning rate; None: nothing does.
    """

    store: BucketStore
    gradient: BucketGradient
    update: Update
    by_staleness: StalenessWeight | None = None


def guarded_update(
    section: BucketSection, control: PsControl, request: ReceivedPush, buckets: Sequence[PushedBucket]
) -> tuple[Tensor, Op]:
    """Builds the update of the buckets of a section that a push has gradients of.

    request: of the push, whose pull was that of the section.

    Returns:
        (outcome, updated): outcome int64 [2] = (APPLIED or the cause of the drop, staleness in versions), of each
        bucket; updated an operation that has run when the ledgers are written.
    """
    push, numbers, pulled = request.push, control.numbers, section.pulled_version
    mine = [bucket.store for bucket in buckets]

    def decide_and_update() -> tuple[Tensor, list[Op]]:
        behind = section.version.read_value() - pulled
        staleness = tf1.reduce_max(behind)
        window, ledger = read_window(section, push), section.ledger.read_value()
        # A negative staleness (a bucket was made anew since the pull) is refused like one over the limit.
        anew = tf1.reduce_min(behind) < numbers(0)
        stale = tf1.logical_or(staleness > control.max_staleness.read_value(), anew)
        otherwise = tf1.where(push.finite, tf1.where(stale, numbers(STALE), numbers(APPLIED)), numbers(NOT_FINITE))
        verdict = refusal(control, push, window, otherwise)
        applied = tf1.equal(verdict, numbers(APPLIED))
        entries = of_those(mine, numbers.one(RECEIVED) + numbers.one_at(verdict), numbers)
        updated = []
        for bucket in buckets:
            with tf1.name_scope(f"guard/{bucket.store.bucket.name}/"):  # from which optimizers name their variables
                let_in = gradient_if(applied, bucket.gradient)
                if rule := bucket.by_staleness:
                    weight = rule.of(staleness)
                    let_in = rule.weighted(let_in, weight)
                    entries += of_those([bucket.store], rule.counted(applied, weight), numbers)
                updated.append(bucket.update(let_in))
        with tf1.control_dependencies([settled(applied, [tf1.group(*updated)])]):
            peak = numbers.one(MAX_STALENESS) * tf1.where(applied, staleness, numbers(0))
            counted = [
                section.version.assign_add(marks_of(mine, numbers) * tf1.cast(applied, tf1.int64), read_value=False),
                section.ledger.assign(tf1.maximum(ledger + entries, of_those(mine, peak, numbers)), read_value=False),
                *record_push(section, mine, control, push, window, applied),
            ]
        return tf1.stack([verdict, staleness]), counted

    with tf1.name_scope(f"guard/{section.name}/"):
        tensors = [tensor for bucket in buckets for tensor in bucket.gradient.tensors]
        arrived = [*push.tensors, pulled, *tensors, *request.learning_rates]
        return locked(section, arrived, decide_and_update)


def marks_of(stores: Sequence[BucketStore], numbers: Numbers) -> Tensor:
    """1 for each of these buckets of a section, 0 for the others; int64 [buckets]."""
    places = {store.place for store in stores}
    return numbers(tuple(int(store.place in places) for store in stores[0].section.stores))


def of_those(stores: Sequence[BucketStore], row: Tensor, numbers: Numbers) -> Tensor:
    """What is added to the rows of a section for these buckets: the row, int64 [columns], if they are all of them, else
    [buckets, columns] with zeros for the others."""
    if len(stores) == len(stores[0].section.stores):
        return row
    return marks_of(stores, numbers)[:, tf1.newaxis] * row


def locked(section: BucketSection, arrived: list[Tensor], body: Body) -> tuple[Tensor, Op]:
    """Builds `body()` on the section's ps, as a critical section that begins when the `arrived` tensors are there.

    `body` returns a tensor and the operations that end the section.  What comes from a worker must be a copy on
    the ps (`copied_to_ps`), also where the body uses it: TensorFlow moves a Switch to the device of its data, and the
    data would travel while the lock is held.

    TensorFlow's mutex is let go of when a run that waits for it is cancelled, as when its worker dies, although
    another one holds it.  So there is a second one behind the first, for which only that one waits who was let in so.
    Each section has mutexes of its own: where many wait, those that die would open the first again and again.

    Returns:
        (that tensor, of any shape, once the section has ended; an operation that has run by then).
    """
    with tf1.device(ps_device(section.ps)):
        with tf1.control_dependencies(arrived):
            entered = tf1.raw_ops.MutexLock(mutex=section.entry_mutex)
        with tf1.control_dependencies([entered]):
            lock = tf1.raw_ops.MutexLock(mutex=section.mutex)
        with tf1.control_dependencies([lock]):
            result, last = body()
        with tf1.control_dependencies(last):
            unlock = tf1.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        with tf1.control_dependencies([unlock]):
            ended = tf1.raw_ops.ConsumeMutexLock(mutex_lock=entered)
        with tf1.control_dependencies([ended]):
            return tf1.identity(result), ended


def copied_to_ps(store: BucketStore, gradient: BucketGradient, dtype: DType) -> BucketGradient:
    """A copy of the gradient on the bucket's ps, its values in this dtype, its indices int64."""
    with tf1.device(ps_device(store.bucket.ps)):
        copy = gradient.map(tf1.identity).wide
        return copy.with_values(tf1.cast(copy.values, dtype))


def read_window(section: BucketSection, push: Push) -> list[Tensor]:
    """The row of the pushing worker in `section.window`, int64 [] of each column."""
    return tf1.unstack(section.window.sparse_read(push.worker), 3)  # type: ignore[no-any-return]


def refusal(control: PsControl, push: Push, window: list[Tensor], otherwise: Tensor) -> Tensor:
    """FENCED or REPEATED where the push is one, else the column of the ledger `otherwise`; int64 []."""
    numbers = control.numbers
    known = is_in(window[WINDOW], window[SEQUENCE], push.sequence, numbers)
    repeated = tf1.logical_and(tf1.equal(window[ORIGIN], push.origin), known)
    return tf1.where(is_fenced(control, push), numbers(FENCED), tf1.where(repeated, numbers(REPEATED), otherwise))


def is_fenced(control: PsControl, push: Push) -> Tensor:
    """Whether the ps does not admit the pushing incarnation, bool []."""
    return tf1.not_equal(control.admitted.sparse_read(push.worker), push.incarnation)


def only_if(condition: Tensor, tensor: Tensor) -> Tensor:
    """The tensor, of any shape, dead unless the condition, bool [], holds: what waits for it does not run then.

    A Switch itself is never dead, only its outputs are; hence the identity, which can be waited for.
    """
    return tf1.identity(tf1.raw_ops.Switch(data=tensor, pred=condition).output_true)


def times(values: Tensor, factor: Tensor) -> Tensor:
    """The values times the factor, []; the values themselves where it is 1, without a pass over the memory and a copy.

    Dead if the values are.
    """
    is_one = tf1.equal(factor, 1)
    multiplied = tf1.multiply(only_if(tf1.logical_not(is_one), values), factor, name="multiplied")
    product = tf1.raw_ops.Merge(inputs=[only_if(is_one, values), multiplied]).output
    product.set_shape(values.shape)
    return product


def gradient_if(condition: Tensor, gradient: BucketGradient) -> BucketGradient:
    """The gradient, dead unless the condition, bool [], holds."""
    return gradient.map(lambda tensor: only_if(condition, tensor))


def settled(condition: Tensor, branches: list[Op]) -> Tensor:
    """The condition, bool [], once one of the branches has run, or once it is clear that it fails.

    The branches are operations that are dead unless the condition holds; if it does, exactly one runs.
    """
    inputs = [tf1.raw_ops.Switch(data=condition, pred=condition).output_false]
    for branch in branches:
        with tf1.control_dependencies([branch]):
            inputs.append(tf1.identity(condition))
    return tf1.raw_ops.Merge(inputs=inputs).output


def record_push(
    section: BucketSection,
    stores: Sequence[BucketStore],
    control: PsControl,
    push: Push,
    window: list[Tensor],
    accepted: Tensor,
) -> list[Op]:
    """Operations that record a push to these buckets of the section that arrived, whether it was accepted or not.

    window: as of `read_window`.  accepted: bool [].
    """
    numbers = control.numbers
    same = tf1.equal(window[ORIGIN], push.origin)
    bits = tf1.where(same, window[WINDOW], numbers(0))
    highest = tf1.where(same, window[SEQUENCE], push.sequence)
    bits, highest = with_one_more(bits, highest, push.sequence, numbers)
    row = tf1.where(accepted, tf1.stack([push.origin, highest, bits]), tf1.stack(window))
    one_more = of_those(stores, tf1.stack([tf1.cast(accepted, tf1.int64), numbers(1)]), numbers)
    counts = section.counts.sparse_read(push.worker) + one_more
    return [write_rows(section.window, push.worker, row), write_rows(section.counts, push.worker, counts)]
