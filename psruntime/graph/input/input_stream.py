"""A worker's input: the user's dataset, iterated in a session of its own beside the training session.

The training session comes and goes with the views of the cluster; this one stays, so the position in the
data does.  Batches are fed.  (A tf.data iterator that two sessions of a cluster share by name crashes the
process; feeding a small batch costs under 0.1 ms.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError, UserCodeError
from psruntime.graph.input.batch_layout import BatchLayout
from psruntime.graph.input.data_errors import DataErrors
from psruntime.graph.input.draw_ahead import DrawnAhead
from psruntime.model import TRAIN, Context, Model
from psruntime.usercode import blame, failure


class InputStream:
    """Batches of one dataset.  One for training begins again at its end: `train_steps` ends a job.

    minibatches: that a training step takes.  data_errors: what becomes of one that the input fails to make.
    any_size: whether a step takes any number of examples (examples.py), so that batches must be dense.
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
            with blame(self.name):
                dataset = model.input_fn(context)
            if not isinstance(dataset, tf.data.Dataset):
                raise UsageError(f"{self.name} returned {type(dataset).__name__}; it must return a tf.data.Dataset")
            if context.mode == TRAIN:
                dataset = dataset.repeat()  # to begin anew from outside stalls for up to a second, on a busy machine
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
        self._next = self._session.make_callable(self.layout.tensors)
        with blame(self.name):  # a file of a vocabulary, or of the data, may be missing
            self._session.run(tables)
            self._session.run(iterator.initializer)
        if context.mode != TRAIN and self._session.run(cardinality) == tf.data.INFINITE_CARDINALITY:
            raise UsageError(f"{self.name} gives data without an end; evaluation reads all of them: leave out repeat()")

    def draw(self) -> list[Any] | None:
        """The next batch as arrays in the order of its layout; None at the end of the data.

        Raises:
            UserCodeError: the input failed; a PassingError if that may pass.
        """
        try:
            with blame(self.name, passing=(tf1.errors.OutOfRangeError,), kind=failure):
                batch: list[Any] = self._next()
        except tf1.errors.OutOfRangeError:
            return None
        return batch

    def draw_endlessly(self) -> list[Any]:
        """What the next training step takes, one mini-batch after the other; drawn while the step before ran.

        The data have no end.
        """
        if self._ahead is None:
            self._ahead = DrawnAhead(self._draw_step)
        batch: list[Any] = self._ahead.next()
        return batch

    def _draw_step(self) -> list[Any]:
        batch: list[Any] = []
        for _ in range(self.minibatches):
            batch += self._draw_minibatch()
        return batch

    def _draw_minibatch(self) -> list[Any]:
        while True:
            try:
                drawn = self.draw()
            except UserCodeError as error:
                self._data_errors.pass_over(error)
                continue
            if drawn is None:
                raise UsageError(
                    f"{self.name} gave a dataset without a single batch; is batch_size larger than the data?"
                )
            self._data_errors.worked()
            return drawn

    @property
    def is_ready(self) -> bool:
        """Whether `draw_endlessly` has a batch at once."""
        return self._ahead is not None and self._ahead.is_ready

    def examples(self, batch: list[Any]) -> int:
        """How many there are in what a step takes."""
        size = len(self.layout.tensors)
        minibatches = (batch[i : i + size] for i in range(0, len(batch), size))
        return sum(int(self.layout.examples(each, np.shape)) for each in minibatches)

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
        self._session.close()
