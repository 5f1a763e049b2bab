"""The messages of a run between a worker and each ps: the header that goes there, and the outcomes that come back.

A placeholder that is fed on a ps is not there at once: TensorFlow sends it from the worker, as a message of its own,
and as a second one to whatever only waits for it.  So all numbers of a run are one vector, the header, made on the
worker and copied to each ps once; and the outcomes of all buckets of a ps come back as one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.graph.base.devices import ps_device, worker_cpu
from psruntime.graph.store.guard import PUSH_ID_SIZE, Push
from psruntime.graph.store.optimizers import Rule, learning_rates_at


@dataclass(frozen=True)
class Arrived:
    """The header on one ps.

    push: who pushes or closes, and what.  learning_rates: float32 [] of each rule.
    members: int64 [], contributions of a complete sum.
    factor: float64 [], by which the sum of all examples' gradients is multiplied; what is summed, by factor x its unit.
    unit: float64 [], by which the gradient would have to be multiplied to be that of the sum over its examples, 0 if
        it does not count; None where no gradient is contributed.
    """

    push: Push
    learning_rates: list[Any]
    members: Any
    factor: Any
    unit: Any = None

    @classmethod
    def of(cls, message: Any, num_rates: int) -> Arrived:
        """message: int64, the fields in the order of `Header.values`; numbers that are not whole as their bits."""
        fields = tf1.unstack(message)
        members, factor, *rest = fields[PUSH_ID_SIZE:]
        rates, (finite, *unit) = rest[:num_rates], rest[num_rates:]
        return cls(
            Push.of(fields[:PUSH_ID_SIZE], tf1.not_equal(finite, 0)),
            [tf1.bitcast(tf1.cast(bits, tf1.int32), tf1.float32) for bits in rates],
            members,
            tf1.bitcast(factor, tf1.float64),
            tf1.bitcast(unit[0], tf1.float64) if unit else None,
        )


class Header:
    """In the current graph, from worker `index` to `num_ps` ps.

    finite: bool [] on the worker, whether the loss is; None: that and `unit` are fed, and a run that is fed nothing
        tells zeros.  unit: float64 [] there, see Arrived; None if no gradient is contributed.
    fed: the placeholder.  nothing: those zeros, int64 [size].  on: of each ps.
    """

    def __init__(self, rules: list[Rule], index: int, num_ps: int, finite: Any = None, unit: Any = None) -> None:
        self._rules = rules
        self._all_is_fed = finite is None
        size = PUSH_ID_SIZE + 2 + len(rules) + 2 * self._all_is_fed
        with tf1.device(worker_cpu(index)):
            self.nothing = np.zeros([size], np.int64)
            if finite is None:
                message = tf1.placeholder_with_default(self.nothing, [size], name="header")
            else:
                message = tf1.placeholder(tf1.int64, [size], name="header")
            self.fed = message
            if finite is not None:
                computed = [tf1.cast(finite, tf1.int64), *([] if unit is None else [tf1.bitcast(unit, tf1.int64)])]
                message = tf1.concat([message, computed], axis=0)
        self.on: list[Arrived] = []
        for ps in range(num_ps):
            with tf1.device(ps_device(ps)):
                self.on.append(Arrived.of(tf1.identity(message, name=f"header_{ps}"), len(rules)))

    def values(
        self,
        push_id: Sequence[int],
        global_step: int = 0,
        members: int = 0,
        factor: float = 0.0,
        finite: bool = True,
        unit: float = 1.0,
    ) -> Any:
        """What to feed for the update that follows this global step, whose learning rates are used; int64 [size].

        push_id: (worker, incarnation, sequence number, origin), see Push.  finite, unit: heeded where they are fed.
        """
        rates = np.array(learning_rates_at(self._rules, global_step), np.float32).view(np.int32)
        last = [finite, _bits(unit)] if self._all_is_fed else []
        return np.array([*push_id, members, _bits(factor), *rates, *last], np.int64)


def _bits(number: float) -> int:
    return int(np.float64(number).view(np.int64))


class Outcomes:
    """Of the buckets of `num_ps` ps, whose outcomes are int64 [2]."""

    def __init__(self, num_ps: int) -> None:
        self._of: list[list[Any]] = [[] for _ in range(num_ps)]

    def add(self, ps: int, outcome: Any) -> None:
        self._of[ps].append(outcome)

    def bring(self, global_step: Any, index: int) -> tuple[list[Any], Any]:
        """(per ps that has buckets int64 [buckets, 2], the global step int64 []), on worker `index`.

        global_step: int64 [] on ps 0.
        """
        with tf1.device(ps_device(0)):
            self._of[0].append(tf1.stack([global_step, 0]))  # a further row, so that it costs no message
        brought = []
        for ps, outcomes in enumerate(self._of):
            if outcomes:
                with tf1.device(ps_device(ps)):
                    stacked = tf1.stack(outcomes)
                with tf1.device(worker_cpu(index)):
                    brought.append(tf1.identity(stacked))
        with tf1.device(worker_cpu(index)):
            return [brought[0][:-1], *brought[1:]], brought[0][-1, 0]
