"""A worker's input: the user's dataset, iterated in a session of its own beside the training session.

Each view of the cluster has a training session of its own; this session stays open, and keeps the position in the
data.  Batches are fed.  (A tf.data iterator that two sessions of a cluster share by name crashes the process; feeding
a small batch costs under 0.1 ms.)

An input_fn that calls `context.shards` is read shard by shard (shard_reader.py), instead of without an end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.config.job_settings import AT_MOST
from psruntime.core.shards.shard_messages import Shard
from psruntime.errors import UsageError, UserCodeError
from psruntime.faults import Place, blame
from psruntime.graph.base.types import Array, Op, Tensor
from psruntime.graph.input.batches import BatchLayout, DataErrors, DrawnAhead
from psruntime.graph.input.csv_errors import explained
from psruntime.graph.input.shard_reader import DrawnBatch, ShardRange, ShardReader, ShardSource
from psruntime.model import TRAIN, Context, Model

Drawn = TypeVar("Drawn")
MOST_MINIBATCHES = AT_MOST["local_steps"]  # of a step with data shards, each of which is named in a message


def require_fit(job: JobConfig, inputs: InputStream) -> None:
    """Raises UsageError if the job's settings do not fit the batch of a step, or the data shards of the input."""
    if job.has_shares and inputs.minibatches > 1:
        raise UsageError("--devices: batch_policy throughput is for one device a worker: a share is one batch")
    if inputs.shards is not None and inputs.minibatches > MOST_MINIBATCHES:
        raise UsageError(
            f"{inputs.name} calls context.shards, with which a step takes at most {MOST_MINIBATCHES} mini-batches, and "
            f"--local-steps and --devices make {inputs.minibatches}"
        )
    if job.has_shares and inputs.shards is not None:
        raise UsageError(
            f"{inputs.name} calls context.shards, which is not for batch_policy throughput: fast workers read more "
            "shards anyway; leave out either"
        )
    if job.schedule and inputs.shards is not None:
        raise UsageError(
            f"{inputs.name} calls context.shards, which is not for --schedule: with data shards the mode of a job "
            "stays as it is; leave out either"
        )
    if job.epochs is not None and inputs.shards is None:
        raise UsageError(f"{inputs.name} does not call context.shards: without data shards --epochs has no meaning")


class InputStream:
    """Batches of one dataset.  One for training starts again at its end: `train_steps` ends a job.

    minibatches: of a training step.  data_errors: handles a batch that the input fails to make.
    any_size: whether a step may have any number of examples (batches.py), so that batches must be dense.
    shards: reads the data shard by shard; None: without an end.
    """

    def __init__(
        self,
        model: Model,
        context: Context,
        minibatches: int = 1,
        data_errors: DataErrors | None = None,
        any_size: bool = False,
    ) -> None:
        self.minibatches = minibatches
        self._data_errors = data_errors or DataErrors()
        self.name = f"input_fn of {model.name} (mode {context.mode})"
        with tf1.Graph().as_default() as graph:
            tf1.set_random_seed(context.seed)
            part = ShardRange(context)
            with blame(self.name):
                dataset = model.input_fn(part.context)
            if not isinstance(dataset, tf.data.Dataset):
                raise UsageError(f"{self.name} returned {type(dataset).__name__}; it must return a tf.data.Dataset")
            by_shards = context.mode == TRAIN and part.sharding is not None
            if context.mode == TRAIN and not by_shards:
                dataset = dataset.repeat()  # to restart it from outside stalls for up to a second, on a busy machine
            if context.mode != TRAIN and context.eval_batches is not None:
                dataset = dataset.take(context.eval_batches)
            cardinality = tf.data.experimental.cardinality(dataset)
            iterator = tf1.data.make_initializable_iterator(dataset)
            self.layout = BatchLayout(iterator.get_next(), any_size)
            tables = tf1.tables_initializer()
        if self.layout.odd:
            raise UsageError(f"{self.name} yields {self.layout.odd}; batches must consist of tensors")
        if any_size and not self.layout.is_dense:
            raise UsageError(
                f"{self.name} yields sparse, ragged or scalar tensors, which cannot be cut into examples; leave out "
                "batch_policy throughput"
            )
        config = tf1.ConfigProto(device_count={"GPU": 0})
        config.experimental.disable_thread_spinning = True
        self._session = tf1.Session(graph=graph, config=config)
        self._ahead: DrawnAhead | None = None
        self._returned: deque[list[Array]] = deque()
        self.drawn = 0  # batches of steps that were handed out
        self._begun: list[DrawnBatch] = []  # mini-batches of a step that is not complete
        self._ended: BaseException | None = None  # why no shard is read any more
        self._next = self._session.make_callable(self.layout.tensors)
        with blame(self.name):  # a file of a vocabulary, or of the data, may be missing
            self._session.run(tables)
            if not by_shards:
                self._session.run(iterator.initializer)
        self.shards: ShardReader | None = None
        if by_shards:
            self._read_shards(part, cardinality, iterator.initializer)
        elif context.mode != TRAIN and self._session.run(cardinality) == tf.data.INFINITE_CARDINALITY:
            raise UsageError(
                f"{self.name} gives data without an end; an evaluation reads all of them: leave out repeat(), or "
                "give --eval-batches"
            )

    def _read_shards(self, part: ShardRange, cardinality: Tensor, initializer: Op) -> None:
        assert part.sharding is not None
        if not part.is_used:
            raise UsageError(
                f"{self.name} calls context.shards and does not use the range that it gives, so each shard would be "
                "all of the data"
            )
        first = Shard(0, 1, *part.sharding.range_of(0))
        with blame(self.name):
            is_endless = self._session.run(cardinality, part.feed(first)) == tf.data.INFINITE_CARDINALITY
        if is_endless:
            raise UsageError(f"{self.name} gives data without an end; a shard is read once: leave out repeat()")

        def open_shard(shard: Shard) -> None:
            with blame(self.name, place=Place.INPUT):
                self._session.run(initializer, part.feed(shard))

        self.shards = ShardReader(self.name, part.sharding, open_shard, self.draw)

    def take_shards_from(self, source: ShardSource) -> None:
        """Sets the source of shards, before the first batch is drawn; does nothing for an input without shards."""
        if self.shards:
            self.shards.take_from(source)

    def draw(self) -> list[Array] | None:
        """The next batch as arrays in the order of its layout; None at the end of the data.

        Raises:
            UserCodeError: the input failed; a PassingError if that may pass.
        """
        try:
            with blame(self.name, passing=(tf1.errors.OutOfRangeError,), place=Place.INPUT):
                batch: list[Array] = self._next()
        except tf1.errors.OutOfRangeError:
            return None
        except UserCodeError as error:
            error.args = (f"{error}{explained(str(error), self._session.graph)}",)
            raise
        return batch

    def draw_endlessly(self) -> list[Array]:
        """The batch of the next training step, one mini-batch after the other; drawn while the step before ran."""
        batch = self.draw_if_any()
        assert batch is not None, "for an input without shards"
        return batch

    def draw_if_any(self) -> list[Array] | None:
        """As `draw_endlessly`; None if there is no shard to read now: the next call waits for one a while."""
        if self._returned:
            batch: list[Array] | None = self._returned.popleft()
        else:
            if self._ahead is None:
                self._ahead = DrawnAhead(self._draw_sharded_step if self.shards else self._draw_step)
            batch = self._ahead.next()
        self.drawn += batch is not None
        return batch

    @property
    def why_none(self) -> str:
        """Why there was no shard to read, for people."""
        return self.shards.reason if self.shards else ""

    def applied(self, batch: list[Array]) -> None:
        """Notes that the batch of a step is in the variables, or was skipped."""
        if self.shards:
            self.shards.applied(batch)

    def put_back(self, batch: list[Array]) -> None:
        """Notes that the batch of a step is not in the variables: with data shards it is drawn again."""
        if self.shards:
            self._returned.append(batch)

    def give_back(self, batch: list[Array]) -> None:
        """Returns a batch that no step used: it is the next one that is drawn."""
        self._returned.appendleft(batch)
        self.drawn -= 1

    def _draw_step(self) -> list[Array]:
        batch: list[Array] = []
        for _ in range(self.minibatches):
            batch += self._draw_minibatch()
        return batch

    def _draw_sharded_step(self) -> DrawnBatch | None:
        """A step with too few mini-batches, at the end of the shards that can be read now, has some of them twice.

        Once it has raised, so do all later calls: no report to the coordinator may count a failed batch as read.
        """
        assert self.shards is not None
        if self._ended is not None:
            raise self._ended
        while len(self._begun) < self.minibatches:
            try:
                drawn = self.draw_of_shard()
            except BaseException as error:
                self._ended = error
                raise
            if drawn is None and not self._begun:
                return None
            if drawn is not None or self.shards.is_answered:
                self._begun.append(self._begun[0] if drawn is None else drawn)
        step, self._begun = self._begun, []
        return DrawnBatch([array for each in step for array in each], tuple(of for each in step for of in each.of))

    def draw_of_shard(self) -> DrawnBatch | None:
        """The next mini-batch of the shards; None if there is none to read now.  Not beside `draw_if_any`."""
        assert self.shards is not None
        return self._skipping_bad(self.shards.draw)

    def _draw_minibatch(self) -> list[Array]:
        drawn = self._skipping_bad(self.draw)
        if drawn is None:
            raise UsageError(f"{self.name} gave a dataset without a single batch; is batch_size larger than the data?")
        return drawn

    def _skipping_bad(self, draw: Callable[[], Drawn | None]) -> Drawn | None:
        """The first batch drawn that the user's code does not fail to make; None if there is none."""
        while True:
            try:
                drawn = draw()
            except UserCodeError as error:
                self._data_errors.skip(error)
                continue
            if drawn is not None:
                self._data_errors.succeeded()
            return drawn

    @property
    def is_ready(self) -> bool:
        """Whether the next draw returns at once, with a batch or without one."""
        return bool(self._returned) or (self._ahead is not None and self._ahead.is_ready)

    def examples(self, batch: list[Array]) -> int:
        """The number of examples in the batch of a step."""
        size = len(self.layout.tensors)
        minibatches = (batch[i : i + size] for i in range(0, len(batch), size))
        return sum(int(self.layout.examples(each, np.shape)) for each in minibatches)

    def miscounted(self, batch: list[Array]) -> UsageError | None:
        """Why the weight of a mini-batch of a step is ambiguous; None if it is not."""
        size = len(self.layout.tensors)
        for i in range(0, len(batch), size):
            if differs := self.layout.miscounted(batch[i : i + size]):
                return UsageError(
                    f"{self.name}: {differs}, so the weight of a batch in a round of mode sync is not known; give the "
                    "number of its examples as `examples` of ModelSpec, for example tf.shape(labels)[0]"
                )
        return None

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
        self._session.close()
