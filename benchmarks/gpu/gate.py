"""A gate before the training of a trial: its processes start beside those of others, and it is measured alone.

A process whose environment has GATE waits at the gate, after its first steps, until the file that GATE names is there.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf1

from benchmarks.step_times import StepTimes

GATE = "PSRUNTIME_BENCHMARK_GATE"
FIRST_STEPS = 5  # in which TensorFlow chooses its kernels, and memory grows
LOOK_S = 0.05


class Gate(tf1.train.SessionRunHook):  # type: ignore[misc]
    """Lets the first steps through, and the others once the gate is open."""

    def __init__(self) -> None:
        self._count = 0
        self._gate = Path(os.environ[GATE]) if GATE in os.environ else None

    def before_run(self, run_context: Any) -> None:  # noqa: ARG002
        self._count += 1
        while self._gate and self._count > FIRST_STEPS and not self._gate.exists():
            time.sleep(LOOK_S)


def hooks() -> list[Any]:
    """Those of a model in the trials."""
    return [Gate(), StepTimes()]
