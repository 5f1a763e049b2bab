"""How fast the modes are if nothing takes time but the steps themselves: what is lost to waiting alone."""

from __future__ import annotations

from typing import Any

import numpy as np


def steps_per_s(waits_s: Any, bound: float | None) -> float:
    """Steps per second of all workers together.

    waits_s: float [workers, steps], how long each step takes.  bound: how many steps a worker may be ahead of the
    slowest; 0 is mode sync, None is mode async.
    """
    workers, steps = waits_s.shape
    ends_s = np.zeros([steps + 1, workers])
    for step in range(steps):
        others_at = None if bound is None else step - int(bound)  # steps that all have completed before this one
        gate_s = 0.0 if others_at is None or others_at < 0 else ends_s[others_at].max()
        ends_s[step + 1] = np.maximum(ends_s[step], gate_s) + waits_s[:, step]
    return float(workers * steps / ends_s[-1].max())
