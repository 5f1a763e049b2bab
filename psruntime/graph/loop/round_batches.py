"""The batches of a worker in mode sync: numbered, of its input's own size or of as many examples as its share of the
round, and drawn before a round asks for one where that cannot wait.

With data shards there may be none: others hold the rest of the epoch.  A round must not wait for that, because those
others may wait for the round.  So a worker without a batch says so instead, and takes no part in rounds until it has
one.
"""

from __future__ import annotations

from dataclasses import dataclass

from psruntime.core.rounds.round_messages import Starved, Taken
from psruntime.core.shards.shard_messages import ShardBatch
from psruntime.graph.base.types import Array
from psruntime.graph.input.examples import Examples
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.input.shard_reader import DrawnBatch


@dataclass(frozen=True)
class Batch:
    """The `number`-th that the worker took, from 0, in whatever mode.

    taken: of which examples, in 0 s; None if the input made it.
    """

    number: int
    arrays: list[Array]
    taken: Taken | None = None

    @property
    def of(self) -> tuple[ShardBatch, ...]:
        """Of which data shards it is; none without any."""
        return self.arrays.of if isinstance(self.arrays, DrawnBatch) else ()


class NoBatchError(Exception):
    """There is no batch now."""


class RoundBatches:
    """Batches of `inputs`, in order.

    shares: whether a batch has as many examples as is said, instead of its own batch size; not for data shards.
    """

    def __init__(self, inputs: InputStream, shares: bool = False) -> None:
        self._inputs = inputs
        self._examples = Examples(inputs.draw_endlessly, inputs.name) if shares else None
        self._number = inputs.drawn  # batches of shares, and those that steps of another mode drew
        self._ahead: Batch | None = None
        self._is_idle = False  # there was none when one was drawn last

    def next(self, share: int) -> Batch:
        """The next one.  share: its number of examples; 0: the batch size of the input.

        Raises:
            NoBatchError: there is none now.
            UsageError: the input has no batch, or one that cannot be cut.
            UserCodeError: it failed.
        """
        if self._ahead is None and self._examples:
            self._ahead = self._cut(self._examples, share)
        elif self._ahead is None:
            self._draw()
        batch, self._ahead = self._ahead, None
        if batch is None:
            raise NoBatchError
        return batch

    def keep(self, batch: Batch) -> None:
        """It was drawn too early: it is the next one."""
        self._ahead = batch

    def pass_over(self, batch: Batch) -> None:
        """It was given up, and counts as read."""
        self._inputs.applied(batch.arrays)

    def put_back(self, batch: Batch) -> None:
        """It is not in the variables, and will not be as it was computed."""
        self._inputs.put_back(batch.arrays)

    def leave(self) -> None:
        """Somebody else goes on with the input."""
        if self._ahead:
            self._inputs.give_back(self._ahead.arrays)
            self._ahead = None

    def starved(self, since: int) -> Starved | None:
        """What to say while there is no batch, None while there may be one.  Does not wait.  since: as in Starved."""
        while self._inputs.shards and self._ahead is None and self._inputs.is_ready:
            self._draw()
            if self._is_idle:
                break
        if self._inputs.shards is None or self._ahead or not self._is_idle:
            return None
        return Starved(since, self._inputs.why_none, lambda: self._inputs.is_ready)

    def _draw(self) -> None:
        arrays = self._inputs.draw_if_any()
        self._is_idle = arrays is None
        if arrays is not None:
            self._ahead = Batch(self._inputs.drawn - 1, arrays)

    def _cut(self, examples: Examples, share: int) -> Batch:
        own, first = examples.batch_size, examples.taken
        size = share or own
        batch = Batch(self._number, examples.take(size), Taken(first, size, own, seconds=0.0))
        self._number += 1
        return batch
