"""What became of a push, from each ps in one message."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf1

from psruntime.graph.base.devices import ps_device, worker_cpu


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
