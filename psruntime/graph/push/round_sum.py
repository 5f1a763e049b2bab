"""The rounds of mode sync on one section: the sums of the contributions, one worker's contribution, and the close.

TensorFlow's ConditionalAccumulator is not used: it counts the repeat of a push twice, cannot be read (the joint norm is
needed before anything is applied), blocks when it is empty, and a gradient that was taken out of it is lost with
the run that took it.  Here the sum stays until the next attempt begins, so an interrupted close is simply repeated.

Gradients that name rows are kept as they come, one after the other, and added up once, when the sum is applied: to add
each to the sum of those before would make all rows unique anew each time, quadratic in the workers of a round.

A close may be interrupted anywhere, and others close the same round too: a section that has applied the attempt is
passed over.  The intent is written before the updates and the attempt after them, so a section in which an update
failed is known to be torn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import APPLIED, NOT_FINITE, PENDING, RECEIVED, VOID
from psruntime.core.rounds.contribution import BucketOutcome, SectionState
from psruntime.graph.base.server import ps_device
from psruntime.graph.base.types import DType, Op, Tensor, Variable
from psruntime.graph.base.variable_values import write_rows
from psruntime.graph.buckets.apply import Update
from psruntime.graph.buckets.bucket_store import BucketSection, BucketStore, PsControl, ps_variable
from psruntime.graph.buckets.gradient import BucketGradient, GradientStore, summed, summing
from psruntime.graph.push.guard import (
    Body,
    copied_to_ps,
    gradient_if,
    is_fenced,
    locked,
    marks_of,
    of_those,
    only_if,
    read_window,
    record_push,
    refusal,
    settled,
    times,
)
from psruntime.graph.push.step_messages import ReceivedPush


class RowSum:
    """Variables on the current device, as GradientStore; of the rows that they have room for, the first `count` count.

    Two gradients are put together as they are: TensorFlow copies a variable that rows were ever written into in every
    read and assignment. For later ones the room doubles when it is used up, so that a row is
    moved about twice, however many come.
    """

    def __init__(self, name: str, master: Variable, dtype: DType) -> None:
        self._rows = GradientStore(name, master, dtype, is_sparse=True)
        self._count = ps_variable(f"{name}/count", [])
        self.dtype = dtype

    @property
    def variables(self) -> list[Variable]:
        return [*self._rows.variables, self._count]

    def read(self) -> BucketGradient:
        """All rows as they came, on the current device; in a run that is not in the critical section, perhaps fewer.

        Of what is read from a variable the shape is not asked: TensorFlow's rewriter makes it that of what the run
        assigns to the variable, where that is known, as with the ids of tf.range.  The last round was closed without
        the rows of all its contributions but one.
        """
        stored, count = self._rows.read(), self._count.read_value()
        for tensor in stored.tensors:
            count = tf1.shape(tensor[:count], out_type=tf1.int64)[0]
        return stored.map(lambda tensor: tensor[:count])

    def total(self, rows: BucketGradient) -> BucketGradient:
        """The sum, from the rows as they came."""
        return summed(rows, in_order=False)

    def write(self, gradient: BucketGradient) -> Op:
        """An operation that replaces the sum."""
        return self._counted([self._rows.write(gradient)], tf1.size(gradient.indices, out_type=tf1.int64))

    def add(self, gradient: BucketGradient, factor: Tensor) -> list[Op]:
        """Operations, of which one adds the gradient times the factor, float64 [], to the sum, and the others are
        dead."""
        rooms = [tf1.raw_ops.VariableShape(input=v.handle, out_type=tf1.int64)[0] for v in self._rows.variables]
        room = tf1.minimum(*rooms)  # they differ where an operation that moves rows was cut off
        with tf1.control_dependencies(gradient.tensors):
            begin = self._count.read_value()
        end = begin + tf1.size(gradient.indices, out_type=tf1.int64)
        fits = end <= room
        more = gradient.with_values(times(gradient.values, tf1.cast(factor, self.dtype)))
        behind, places = gradient_if(fits, more), only_if(fits, tf1.range(begin, end))
        in_place = [
            write_rows(variable, places, rows)
            for variable, rows in zip(self._rows.variables, behind.tensors, strict=True)
        ]
        moved = self._moved(gradient_if(tf1.logical_not(fits), more), begin)
        return [self._counted(in_place, only_if(fits, end)), moved]

    def _moved(self, more: BucketGradient, count: Tensor) -> Op:
        """An operation that keeps all rows, in room for twice those before, or for all if that is more.

        Dead if those that come are.
        """
        with tf1.control_dependencies(more.tensors):  # what is read elsewhere cannot be changed in place
            stored = self._rows.read().map(lambda tensor: tensor[:count])
        coming = tf1.size(more.indices, out_type=tf1.int64)
        room = [tf1.zeros_like(tensor[: tf1.maximum(count - coming, 0)]) for tensor in stored.tensors]
        all_rows = zip(stored.tensors, more.tensors, room, strict=True)
        together = BucketGradient(*[tf1.concat(parts, axis=0) for parts in all_rows])
        return self._counted([self._rows.write(together)], count + coming)

    def _counted(self, written: list[Op], count: Tensor) -> Op:
        with tf1.control_dependencies(written):
            return tf1.group(self._count.assign(count, read_value=False))


ROUND_STATE_SIZE = len(SectionState._fields)
APPLIED_ATTEMPT = SectionState._fields.index("applied")  # a column of the round state


class BucketSum:
    """The sum of one bucket's round, on its ps.

    sum: a gradient like the contributions, dense or rows with their indices; summed in the master's dtype, of
        half precision in float32, rows when they are applied.
    section: the rounds of its section.
    """

    def __init__(self, store: BucketStore, is_sparse: bool, section: SectionRounds) -> None:
        self.store, self.section = store, section
        with tf1.device(ps_device(store.bucket.ps)):
            dtype = summing(store.master.dtype.base_dtype)
            name = f"sum/{store.bucket.name}"
            self.sum = RowSum(name, store.master, dtype) if is_sparse else GradientStore(name, store.master, dtype)

    def joint(self, total: BucketGradient, factor: Tensor) -> BucketGradient:
        """The sum of all examples' gradients times the factor, float64 [], from the sum as it was read."""
        total = self.sum.total(total)
        multiplier = tf1.cast(factor * self.section.scale.read_value(), self.sum.dtype)
        return total.with_values(times(total.values, multiplier))

    def square(self) -> Tensor:
        """Sum of squares of the sum of all examples' gradients, float64 []."""
        squares = tf1.reduce_sum(tf1.square(tf1.cast(self.sum.total(self.sum.read()).values, tf1.float64)))
        return tf1.math.multiply_no_nan(squares, tf1.square(self.section.scale.read_value()))


class SectionRounds:
    """The variables of the buckets of a section for their rounds, on its ps.

    scale: float64 [], multiply a `sum` by it to get the sum of all examples' gradients; 0: nothing was summed.
    state: int64 [ROUND_STATE_SIZE], the columns of SectionState.
    """

    def __init__(self, section: BucketSection) -> None:
        self.section = section
        self.sums: list[BucketSum] = []
        with tf1.device(ps_device(section.ps)):
            self.scale = ps_variable(f"unit/{section.name}", [], tf1.float64)
            self.state = ps_variable(f"round/{section.name}", [ROUND_STATE_SIZE])

    def of(self, store: BucketStore, is_sparse: bool) -> BucketSum:
        """Of a bucket that is pushed.  is_sparse: whether its gradients name rows."""
        self.sums.append(BucketSum(store, is_sparse, self))
        return self.sums[-1]

    @property
    def variables(self) -> list[Variable]:
        return [*(v for each in self.sums for v in each.sum.variables), self.scale, self.state]

    @property
    def stores(self) -> list[BucketStore]:
        """The buckets that are pushed."""
        return [each.store for each in self.sums]

    def add(self, gradients: Sequence[BucketGradient], scale: Tensor, accepted: Tensor, is_new: Tensor) -> Tensor:
        """Adds the gradients, of each bucket in `sums`, to these, if they are accepted and their scale is above 0.

        Returns the scale of the sums, a tensor that is there once the gradients were added.

        is_new: bool [], whether the gradients begin new sums.  The sums have the scale of the first gradient in them:
        gradients of the same scale are added as they are.
        """
        stored = self.scale.read_value()
        before = tf1.where(is_new, tf1.zeros_like(stored), stored)
        is_first = tf1.equal(before, 0)
        counts = tf1.logical_and(accepted, scale > 0)
        factor = tf1.math.divide_no_nan(scale, before)
        added = []
        for each, gradient in zip(self.sums, gradients, strict=True):
            live = gradient_if(counts, gradient)
            first = gradient_if(is_first, live)
            more = gradient_if(tf1.logical_not(is_first), live)
            added.append(settled(counts, [each.sum.write(first), *each.sum.add(more, factor)]))
        with tf1.control_dependencies(added):
            summed = tf1.where(tf1.logical_and(is_first, counts), scale, before)
            return tf1.where(accepted, summed, stored)

    def seal(self, fenced: Callable[[Body], Body]) -> Op:
        """An operation after which what is summed now can never be applied: its contributions count no more.

        fenced: puts a critical section behind the fence.
        """

        def forget() -> tuple[Tensor, list[Op]]:
            state = SectionState(*tf1.unstack(self.state.read_value()))
            sealed = tf1.stack(state._replace(count=tf1.zeros_like(state.count)))
            return sealed, [self.state.assign(sealed, read_value=False)]

        return locked(self.section, [], fenced(forget))[1]


def pending_of(ledger: Tensor) -> Tensor:
    """int64 [buckets, LEDGER_SIZE] -> [buckets, 1], contributions to a round that has not closed."""
    return ledger[:, PENDING : PENDING + 1]


def contribute(
    rounds: SectionRounds,
    control: PsControl,
    request: ReceivedPush,
    gradients: Sequence[BucketGradient],
    closed: Tensor = None,
    replaces: bool = False,
) -> Tensor:
    """Builds one worker's contribution to a section: adds its gradients to the sums, once.

    request: of the push, whose sequence number is the attempt, and the scale of the gradients.
    gradients: of each bucket in `rounds.sums`.
    closed: the round state after the close of the round before, in the same run; the contribution begins after it.
    replaces: whether the gradients take the place of the sums so far, if they count.

    core/rounds/contribution.py has the rule of what counts.  A contribution that is not finite counts, without its
    gradients, so that the round is complete without it.

    Returns:
        int64 [3], of each bucket, as BucketOutcome: PENDING, NOT_FINITE or the cause of the drop; the last attempt that
        is applied, after the close if there was one; the contributions in the sum before this one.
    """
    section, push, attempt = rounds.section, request.push, request.push.sequence
    numbers = control.numbers
    gradients = [copied_to_ps(each.store, g, each.sum.dtype) for each, g in zip(rounds.sums, gradients, strict=True)]

    def add() -> tuple[Tensor, list[Op]]:
        stored, ledger = rounds.state.read_value(), section.ledger.read_value()
        state, window = SectionState(*tf1.unstack(stored)), read_window(section, push)
        taken = tf1.where(push.finite, numbers(PENDING), numbers(NOT_FINITE))
        verdict = refusal(control, push, window, tf1.where(state.voids(attempt), numbers(VOID), taken))
        accepted = tf1.equal(verdict, taken)
        is_new = state.begins(attempt)
        begins = tf1.logical_and(accepted, is_new)
        begins_sum = tf1.logical_or(is_new, request.scale > 0) if replaces else is_new
        scale = rounds.scale.assign(rounds.add(gradients, request.scale, accepted, begins_sum), read_value=False)
        with tf1.control_dependencies([scale]):  # so that the state never counts a sum whose scale is not known
            before = tf1.where(begins, numbers(0), state.count)
            now = tf1.stack(state._replace(attempt=attempt, count=before + numbers(1)))
            given_up = tf1.cast(begins, tf1.int64) * pending_of(ledger) * numbers.moved(PENDING, VOID)
            entries = of_those(rounds.stores, numbers.one(RECEIVED) + numbers.one_at(verdict), numbers)
            last = [
                rounds.state.assign(tf1.where(accepted, now, stored), read_value=False),
                section.ledger.assign(ledger + given_up + entries, read_value=False),
                *record_push(section, rounds.stores, control, push, window, accepted),
            ]
        after_close = state if closed is None else SectionState(*tf1.unstack(closed))
        return tf1.stack(BucketOutcome(verdict, after_close.applied, before)), last

    with tf1.name_scope(f"contribute/{section.name}/"):
        tensors = [tensor for gradient in gradients for tensor in gradient.tensors]
        arrived = [*push.tensors, request.scale, *tensors, *([] if closed is None else [closed])]
        return locked(section, arrived, add)[0]


def close(
    rounds: SectionRounds,
    control: PsControl,
    closing: ReceivedPush,
    updates: Sequence[tuple[Update, BucketGradient | None]],
) -> tuple[Tensor, Op]:
    """Builds the close of a round on a section: updates its buckets from the sums of all contributions, once.

    closing: who closes; the sequence number of its push is the attempt.
    updates: of each bucket in `rounds.sums`: what builds the update from a gradient, which is dead if there is
        nothing to apply; and that gradient, None: the sum as it is then.

    Returns:
        (round state, int64 [ROUND_STATE_SIZE] after it; an operation that has run by then).
    """
    section, attempt, numbers = rounds.section, closing.push.sequence, control.numbers

    def decide_and_update() -> tuple[Tensor, list[Op]]:
        stored, ledger = rounds.state.read_value(), section.ledger.read_value()
        state, pending = SectionState(*tf1.unstack(stored)), pending_of(ledger)
        refused = tf1.logical_or(state.began(attempt), is_fenced(control, closing.push))
        ready = tf1.logical_and(state.is_complete(attempt, closing.members, tf1.equal), tf1.logical_not(refused))
        anything = tf1.logical_and(tf1.reduce_max(pending) > numbers(0), closing.factor > numbers(0, tf1.float64))
        applied = tf1.logical_and(ready, anything)
        intent = state._replace(attempt=attempt, count=closing.members, intent=attempt)
        begun = rounds.state.assign(tf1.where(ready, tf1.stack(intent), stored), read_value=False)
        with tf1.control_dependencies([begun]):
            updated = []
            for each, (update, gradient) in zip(rounds.sums, updates, strict=True):
                with tf1.name_scope(f"close/{each.store.bucket.name}/"):  # from which optimizers name their variables
                    given = each.sum.read() if gradient is None else gradient
                    updated.append(update(gradient_if(applied, given)))
        after = tf1.where(ready, tf1.stack(intent._replace(applied=attempt)), stored)
        all_updated = settled(applied, [tf1.group(*updated)])
        with tf1.control_dependencies([begun, all_updated]):  # `settled` does not wait if not applied
            fate = tf1.where(applied, numbers.moved(PENDING, APPLIED), numbers.moved(PENDING, NOT_FINITE))
            moved = tf1.cast(ready, tf1.int64) * pending * fate
            one_more = marks_of(rounds.stores, numbers) * tf1.cast(applied, tf1.int64)
            last = [
                section.version.assign_add(one_more, read_value=False),
                section.ledger.assign(ledger + moved, read_value=False),
                rounds.state.assign(after, read_value=False),
            ]
        return after, last

    push = closing.push
    arrived = [push.worker, push.incarnation, attempt, closing.members, closing.factor, *closing.learning_rates]
    arrived += [tensor for _, gradient in updates if gradient is not None for tensor in gradient.tensors]
    with tf1.name_scope(f"close/{section.name}/"):
        return locked(section, arrived, decide_and_update)
