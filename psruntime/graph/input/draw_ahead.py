"""Batches drawn ahead: a thread of its own draws them, in order, before the training asks for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from psruntime.graph.base.types import Array

AHEAD = 2  # batches, of a step each; tf.data keeps as many more as the user's prefetch has


class DrawnAhead:
    """Draws batches ahead.

    draw: returns a batch, or raises why there is none; `next` raises the same in the place of that batch.
    """

    def __init__(self, draw: Callable[[], list[Array] | None]) -> None:
        self._draw = draw
        self._wanted_queue: SimpleQueue[bool] = SimpleQueue()
        self._drawn_queue: SimpleQueue[Future[list[Array] | None]] = SimpleQueue()
        self._want, self._give = self._wanted_queue.put, self._drawn_queue.put  # neither blocks
        for _ in range(AHEAD):
            self._want(True)
        threading.Thread(target=self._keep, name="input", daemon=True).start()

    @property
    def is_ready(self) -> bool:
        """Whether `next` has one at once."""
        return not self._drawn_queue.empty()

    def next(self) -> list[Array] | None:
        """The next batch; waits until it is drawn."""
        batch = self._drawn_queue.get()
        self._want(True)
        return batch.result()

    def close(self) -> None:
        """Ends the drawing; `next` is not called again."""
        self._want(False)

    def _keep(self) -> None:
        while self._wanted_queue.get():
            batch: Future[list[Array] | None] = Future()
            try:
                batch.set_result(self._draw())
            except BaseException as error:  # noqa: BLE001 - `next` raises it
                batch.set_exception(error)
            self._give(batch)
