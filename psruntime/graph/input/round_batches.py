"""The batches of a worker in mode sync: as its input makes them, or of as many examples as its share of the round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psruntime.core.rounds.round_messages import Taken
from psruntime.graph.input.examples import Examples
from psruntime.graph.input.input_stream import InputStream


@dataclass(frozen=True)
class Batch:
    """The `number`-th that the worker took, from 0.  taken: of which examples, in 0 s; None if the input made it."""

    number: int
    arrays: list[Any]
    taken: Taken | None = None


class RoundBatches:
    """shares: whether a batch has as many examples as is said, instead of the input's own batch size."""

    def __init__(self, inputs: InputStream, shares: bool) -> None:
        self._inputs = inputs
        self._examples = Examples(inputs.draw_endlessly, inputs.name) if shares else None
        self._drawn = 0

    def next(self, share: int) -> Batch:
        """The next batch.  share: its number of examples; 0: the batch size of the input.

        Raises:
            UsageError: the input has no batch, or one that cannot be cut.
            UserCodeError: it failed.
        """
        number = self._drawn
        if self._examples is None:
            batch = Batch(number, self._inputs.draw_endlessly())
        else:
            own, first = self._examples.batch_size, self._examples.taken
            size = share or own
            batch = Batch(number, self._examples.take(size), Taken(first, size, own, seconds=0.0))
        self._drawn += 1
        return batch
