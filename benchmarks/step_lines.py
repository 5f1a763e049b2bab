"""The lines in which a worker tells its steps, see step_times.py, of a peer without TensorFlow as well."""

from __future__ import annotations

import time

from psruntime.observe.meter import TrafficMeter

EVERY_S = 0.2  # between two lines at least


class StepLines:
    """Prints the lines of one worker."""

    def __init__(self) -> None:
        self.count, self._told_s = 0, 0.0
        self._traffic = TrafficMeter(lambda _: True)

    def step_done(self) -> None:
        """Another step of this process."""
        self.count += 1
        now_s = time.time()
        if now_s - self._told_s >= EVERY_S:
            self._told_s = now_s
            moved = self._traffic.moved()
            print(f"steps {self.count} {now_s} {moved.sent + moved.received if moved else '-'}", flush=True)
