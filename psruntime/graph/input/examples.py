"""The examples of an input: batches drawn ahead, joined and cut so that a step takes any number of examples.

An input_fn makes batches of one size; tf.data reads that size once, when the iterator is initialised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

import numpy as np

from psruntime.errors import UsageError
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


EMPTY = 1000  # batches in a row without an example, after which the input fails


class Examples:
    """The examples of an input with dense batches.

    draw: its next batch, arrays with the examples along their first axes.  name: of the input, for messages.
    taken: examples that were taken so far.
    """

    def __init__(self, draw: Callable[[], list[Array]], name: str) -> None:
        self._draw = draw
        self._name = name
        self._batches: list[list[Array]] = []  # that were drawn, without the examples that were taken
        self._batch_size = 0
        self.taken = 0

    @property
    def batch_size(self) -> int:
        """The batch size of the input itself, that of its first batch."""
        if not self._batch_size:
            self._draw_until(1)
            self._batch_size = len(self._batches[0][0])
        return self._batch_size

    def take(self, size: int) -> list[Array]:
        """The next `size` examples, as a batch.

        Raises:
            UsageError: a batch cannot be cut.
            UserCodeError: the input failed; nothing is taken then, and nothing lost.
        """
        self._draw_until(size)
        joint = self._batches[0]
        if len(self._batches) > 1:
            joint = [np.concatenate(arrays) for arrays in zip(*self._batches, strict=True)]
        self._batches = [[array[size:] for array in joint]] if len(joint[0]) > size else []
        self.taken += size
        return [array[:size] for array in joint]

    def skip(self, size: int) -> None:
        """Skips the next `size` examples."""
        while size > 0:
            self._draw_until(1)
            some = min(size, sum(len(batch[0]) for batch in self._batches))
            self.take(some)
            size -= some

    def _draw_until(self, size: int) -> None:
        """Draws until so many examples are there."""
        while sum(len(batch[0]) for batch in self._batches) < size:
            self._batches.append(self._drawn())

    def _drawn(self) -> list[Array]:
        """The next batch that has an example."""
        for _ in range(EMPTY):
            batch = self._draw()
            sizes = sorted({len(array) for array in batch})
            if len(sizes) > 1:
                raise UsageError(
                    f"{self._name} gave a batch whose tensors have {sizes[0]} to {sizes[-1]} entries along their first "
                    "axes, so it cannot be cut into examples; leave out batch_policy throughput"
                )
            if sizes[0]:
                return batch
        raise UsageError(f"{self._name} gave {EMPTY} batches in a row without an example")
