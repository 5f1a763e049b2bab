"""The messages of a run between a worker and each ps: the header that goes there, and the outcomes that come back.

A placeholder that is fed on a ps is not there at once: TensorFlow sends it from the worker, as a message of its own,
and as a second one to whatever only waits for it.  So all numbers of a run are one vector, the header, made on the
worker and copied to each ps once; and the outcomes of all buckets of a ps come back as one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.graph.base.server import ps_device, worker_cpu
from psruntime.graph.base.types import Array, Tensor
from psruntime.graph.buckets.bucket_store import PsControl
from psruntime.graph.buckets.optimizers import Rule, learning_rates_at

PUSH_ID_SIZE = 4
_FENCED = -1  # an incarnation that no ps admits


@dataclass(frozen=True)
class Push:
    """The identity of a push, as tensors on one ps.

    worker, incarnation, sequence: int64 [].  finite: bool [], whether the loss was.
    origin: int64 [], whose sequence numbers these are: of a process, which may be admitted again as another
        incarnation and then repeats what was interrupted.
    """

    worker: Tensor
    incarnation: Tensor
    sequence: Tensor
    finite: Tensor
    origin: Tensor

    @classmethod
    def of(cls, push_id: Sequence[Tensor], finite: Tensor) -> Push:
        """push_id: (worker, incarnation, sequence, origin), int64 [] each.  finite: bool []."""
        worker, incarnation, sequence, origin = (push_id[i] for i in range(PUSH_ID_SIZE))
        return cls(worker, incarnation, sequence, finite, origin)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors, all [], that must have arrived before the push is looked at."""
        return [self.worker, self.incarnation, self.sequence, self.finite, self.origin]


@dataclass(frozen=True)
class ReceivedPush:
    """The header as it arrived on one ps.

    push: who pushes or closes, and what.  learning_rates: float32 [] of each rule.
    members: int64 [], contributions of a complete sum.
    factor: float64 [], by which the sum of all examples' gradients is multiplied; 0: nothing is applied.
    is_chief: bool [], whether the chief pushes.
    scale: float64 [], the gradient scale: multiply the gradient by it to get the sum over its examples; 0 if the
        gradient does not count, None where none is contributed.
    """

    push: Push
    learning_rates: list[Tensor]
    members: Tensor
    factor: Tensor
    scale: Tensor = None
    is_chief: Tensor = None

    @classmethod
    def of(cls, message: Tensor, num_rates: int, control: PsControl) -> ReceivedPush:
        """message: int64 [size], as `PushRequest.values` makes it; numbers that are not whole as their bits.

        control: of the ps, by whose scale the rates are multiplied.  That changes only while no push is under way.
        """
        fields = tf1.unstack(message)
        members, factor, is_chief, *remainder = fields[PUSH_ID_SIZE:]
        rates, (finite, *scale) = remainder[:num_rates], remainder[num_rates:]
        scaled = _scaled([tf1.bitcast(tf1.cast(bits, tf1.int32), tf1.float32) for bits in rates], control)
        counts, factor = tf1.not_equal(finite, 0), tf1.bitcast(factor, tf1.float64)
        if scaled:  # a rate that is not finite is not applied, whatever the worker says of it
            are_finite = tf1.reduce_all(tf1.is_finite(tf1.stack(scaled)))
            counts = tf1.logical_and(counts, are_finite)
            factor = tf1.where(are_finite, factor, tf1.zeros_like(factor))
        return cls(
            Push.of(fields[:PUSH_ID_SIZE], counts),
            scaled,
            members,
            factor,
            tf1.bitcast(scale[0], tf1.float64) if scale else None,
            tf1.not_equal(is_chief, 0),
        )


class PushRequest:
    """The header from worker `index` to the ps of these controls, in the current graph.

    finite: bool [] on the worker, whether the loss is; None: it is fed, with `scale`.
    scale: float64 [] on the worker, see ReceivedPush; None if no gradient is contributed.
    fed: the placeholder.  nothing: what it is if it is not fed, int64 [size]: it is fenced then.
    checked: an operation on the worker that fails if what is fed is `no_push`; the header is not sent before it.
    on: the header on each ps.
    """

    def __init__(
        self, rules: list[Rule], index: int, controls: Sequence[PsControl], finite: Tensor = None, scale: Tensor = None
    ) -> None:
        self._rules = rules
        self.rates: dict[str, float] = {}  # by the pattern of the variables, as `values` had them last
        self.odd_rate = ""  # which rate is not finite, as `values` had them last; empty if all are
        self._all_is_fed = finite is None
        size = PUSH_ID_SIZE + 3 + len(rules) + 2 * self._all_is_fed
        with tf1.device(worker_cpu(index)):
            self.nothing = np.array([0, _FENCED, *[0] * (size - 2)], np.int64)
            message = self.fed = tf1.placeholder_with_default(self.nothing, [size], name="header")
            computed = [] if finite is None else [tf1.cast(finite, tf1.int64)]
            computed += [] if scale is None else [tf1.bitcast(scale, tf1.int64)]
            worker = message[0]
            self.checked = tf1.raw_ops.Assert(condition=worker >= 0, data=[worker])
            with tf1.control_dependencies([self.checked]):
                message = tf1.concat([message, computed], axis=0) if computed else tf1.identity(message)
        self.on: list[ReceivedPush] = []
        for ps, control in enumerate(controls):
            with tf1.device(ps_device(ps)):
                self.on.append(ReceivedPush.of(tf1.identity(message, name=f"header_{ps}"), len(rules), control))

    @property
    def no_push(self) -> Array:
        """What is fed to a run that shall fail before it sends anything, int64 [size]."""
        return np.full_like(self.nothing, -1)

    def values(
        self,
        push_id: Sequence[int],
        global_step: int = 0,
        members: int = 0,
        factor: float = 0.0,
        finite: bool = True,
        scale: float = 1.0,
        is_chief: bool = False,
    ) -> Array:
        """What to feed, int64 [size], with the learning rates of the update that follows this global step.

        push_id: (worker, incarnation, sequence number, origin), see Push.  finite, scale: used where they are fed.
        """
        rates_now = learning_rates_at(self._rules, global_step)
        self.rates = {rule.pattern: rate for rule, rate in zip(self._rules, rates_now, strict=True)}
        with np.errstate(over="ignore"):  # one that float32 cannot hold is infinite, and refused so
            rates = np.array(rates_now, np.float32)
        odd = [number for number, rate in enumerate(rates) if not np.isfinite(rate)]
        self.odd_rate = ""
        if odd:
            pattern, rate = self._rules[odd[0]].pattern, rates_now[odd[0]]
            of = "" if len(self._rules) == 1 else f" of '{pattern}'"
            self.odd_rate = f"the learning rate{of} is {rate:g} at global step {global_step}"
        rates = rates.view(np.int32)
        last = [finite, _bits(scale)] if self._all_is_fed else []
        return np.array([*push_id, members, _bits(factor), is_chief, *rates, *last], np.int64)


def _scaled(rates: list[Tensor], control: PsControl) -> list[Tensor]:
    if not rates:
        return []
    scale = control.learning_rate_scale.read_value()
    return [rate * scale for rate in rates]


def _bits(number: float) -> int:
    return int(np.float64(number).view(np.int64))


class Outcomes:
    """The outcomes of the buckets of `num_ps` ps, int64 [facts] each, on their way to the worker."""

    def __init__(self, num_ps: int) -> None:
        self._of: list[list[Tensor]] = [[] for _ in range(num_ps)]

    def add(self, ps: int, outcome: Tensor) -> None:
        """outcome: int64 [facts], of one bucket of the ps."""
        self._of[ps].append(outcome)

    def bring(self, global_step: Tensor, index: int) -> tuple[list[Tensor], Tensor]:
        """(per ps that has buckets int64 [buckets, facts], the global step int64 []), on worker `index`.

        global_step: int64 [] on ps 0.
        """
        with tf1.device(ps_device(0)):
            others = [0] * (self._of[0][0].shape[0] - 1)
            self._of[0].append(tf1.stack([global_step, *others]))  # a further row, so that it costs no message
        brought = []
        for ps, outcomes in enumerate(self._of):
            if outcomes:
                with tf1.device(ps_device(ps)):
                    stacked = tf1.stack(outcomes)
                with tf1.device(worker_cpu(index)):
                    brought.append(tf1.identity(stacked))
        with tf1.device(worker_cpu(index)):
            return [brought[0][:-1], *brought[1:]], brought[0][-1, 0]
