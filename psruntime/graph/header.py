"""The header of a run: the numbers that a worker tells every ps with it, in one message each.

A placeholder that is fed on a ps is not there at once: TensorFlow sends it from the worker, as a message of its own,
and as a second one to whatever only waits for it.  So all numbers are one vector, made on the worker and copied to
each ps once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf1

from psruntime.graph.devices import ps_device, worker_cpu
from psruntime.graph.guard import PUSH_ID_SIZE, Push
from psruntime.graph.optimizers import Rule, learning_rates_at


@dataclass(frozen=True)
class Arrived:
    """The header on one ps.

    push: who pushes or closes, and what.  learning_rates: float32 [] of each rule.
    members: int64 [], contributions of a complete sum.  factor: float64 [], by which the sum is multiplied.
    """

    push: Push
    learning_rates: list[Any]
    members: Any
    factor: Any

    @classmethod
    def of(cls, message: Any) -> Arrived:
        """message: int64, the fields in the order of `Header.values`; numbers that are not whole as their bits."""
        *head, finite = tf1.unstack(message)
        members, factor, *rates = head[PUSH_ID_SIZE:]
        return cls(
            Push.of(head[:PUSH_ID_SIZE], tf1.not_equal(finite, 0)),
            [tf1.bitcast(tf1.cast(bits, tf1.int32), tf1.float32) for bits in rates],
            members,
            tf1.bitcast(factor, tf1.float64),
        )


class Header:
    """In the current graph, from worker `index` to `num_ps` ps.

    finite: bool [] on the worker, whether the loss is; None: that is fed, and a run that is fed nothing tells zeros.
    fed: the placeholder.  nothing: those zeros, int64 [size].  on: of each ps.
    """

    def __init__(self, rules: list[Rule], index: int, num_ps: int, finite: Any = None) -> None:
        self._rules = rules
        self._finite_is_fed = finite is None
        size = PUSH_ID_SIZE + 2 + len(rules) + self._finite_is_fed
        with tf1.device(worker_cpu(index)):
            self.nothing = np.zeros([size], np.int64)
            if finite is None:
                message = tf1.placeholder_with_default(self.nothing, [size], name="header")
            else:
                message = tf1.placeholder(tf1.int64, [size], name="header")
            self.fed = message
            if finite is not None:
                message = tf1.concat([message, [tf1.cast(finite, tf1.int64)]], axis=0)
        self.on: list[Arrived] = []
        for ps in range(num_ps):
            with tf1.device(ps_device(ps)):
                self.on.append(Arrived.of(tf1.identity(message, name=f"header_{ps}")))

    def values(
        self,
        push_id: Sequence[int],
        global_step: int = 0,
        finite: bool = True,
        members: int = 0,
        factor: float = 0.0,
    ) -> Any:
        """What to feed for the update that follows this global step, whose learning rates are used; int64 [size].

        push_id: (worker, incarnation, sequence number, origin), see Push.  finite: heeded where it is fed.
        """
        rates = np.array(learning_rates_at(self._rules, global_step), np.float32).view(np.int32)
        bits = int(np.float64(factor).view(np.int64))
        last = [finite] if self._finite_is_fed else []
        return np.array([*push_id, members, bits, *rates, *last], np.int64)
