"""The examples of an input one after the other: joins its batches and cuts them, so that a step has any number.

An input_fn makes batches of one size; tf.data reads that size once, when the iterator is initialised.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from psruntime.errors import UsageError
from psruntime.graph.base.types import Array

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
