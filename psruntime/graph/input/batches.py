"""Batches: the layout of one, batches of any number of examples, and batches that the user's code cannot process.

A batch has the structure that input_fn yields, and is fed as dense tensors: a SparseTensor as its indices, values and
shape, a RaggedTensor as its values and row splits.

An input_fn makes batches of one size; tf.data reads that size once, when the iterator is initialised.  They are drawn
ahead, joined and cut, so that a step takes any number of examples.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError, UserCodeError
from psruntime.graph.base.errors import user_error
from psruntime.graph.base.types import Array, Graph, Tensor


class BatchLayout:
    """The layout of `element`, one batch as symbolic tensors.

    any_size: whether a batch, which is dense, may have another number of examples than the element.
    tensors: the dense tensors that are fed, flat.
    """

    def __init__(self, element: Any, any_size: bool = False) -> None:
        self._element = element
        self._any_size = any_size
        self.tensors = tf.nest.flatten(element, expand_composites=True)
        leaves = tf.nest.flatten(element)
        self._first = next((leaf for leaf in leaves if isinstance(leaf, tf1.Tensor)), leaves[0])
        parts = tf.nest.flatten(self._first, expand_composites=True)
        self._position = next(i for i, tensor in enumerate(self.tensors) if tensor is parts[0])

    @property
    def features(self) -> Any:
        """The features of the element."""
        return _sides(self._element)[0]

    @property
    def odd(self) -> str:
        """The kind of a leaf that is not a tensor; empty if all are."""
        kinds = (tf1.Tensor, tf1.SparseTensor, tf.RaggedTensor)
        return next((type(leaf).__name__ for leaf in tf.nest.flatten(self._element) if not isinstance(leaf, kinds)), "")

    @property
    def is_dense(self) -> bool:
        """Whether every tensor has the examples along its first axis, so that batches can be concatenated."""
        leaves = tf.nest.flatten(self._element)
        return all(isinstance(leaf, tf1.Tensor) and leaf.shape.rank != 0 for leaf in leaves)

    def placeholders(self, after: Sequence[Tensor] = (), any_size: bool = False) -> tuple[Any, Any, list[Tensor]]:
        """(features, labels or None, placeholders to feed) for the current graph.

        after: tensors before which nothing is computed of features and labels.
        any_size: for a batch of any number of examples, of which those tensors have the shape that are dense and have
            an axis of them.
        """
        shapes = self._any_sizes() if any_size or self._any_size else [t.shape for t in self.tensors]
        flat = fed = [
            tf1.placeholder(t.dtype, shape, name=f"batch_{i}")
            for i, (t, shape) in enumerate(zip(self.tensors, shapes, strict=True))
        ]
        if after:
            with tf1.control_dependencies(after):
                flat = [tf1.identity(t) for t in fed]
        features, labels = _sides(tf.nest.pack_sequence_as(self._element, flat, expand_composites=True))
        return features, labels, fed

    def _any_sizes(self) -> list[tf1.TensorShape]:
        dense = {
            id(leaf) for leaf in tf.nest.flatten(self._element) if isinstance(leaf, tf1.Tensor) and leaf.shape.rank
        }
        return [tf1.TensorShape([None, *t.shape[1:]]) if id(t) in dense else t.shape for t in self.tensors]

    def examples(self, batch: list[Tensor] | list[Array], shape: Callable[[Tensor], Tensor]) -> Tensor | int:
        """The number of examples in a batch: the length of its first dense tensor, or else of its first tensor.

        batch: flat, arrays or tensors.  shape: returns the shape of one of them.  Returns an integer: of arrays a
        number, of tensors int32 [], or int64 [] of a sparse one; 1 of a scalar.
        """
        return _first_dimension(self._first, batch, self._position, shape)

    def miscounted(self, batch: list[Array]) -> str:
        """How the numbers of examples in features and labels differ; without labels, those of the first and the other
        features.  Empty if one of the others has the same number, or none has any.  batch: arrays.
        """
        features, labels = _sides(self._element)
        beside, position, sizes = features if labels is None else labels, 0, []
        wanted = {id(leaf) for leaf in tf.nest.flatten(beside)} - {id(self._first)}
        for leaf in tf.nest.flatten(self._element):
            if id(leaf) in wanted and np.ndim(batch[position]):
                sizes.append(int(_first_dimension(leaf, batch, position, np.shape)))
            position += len(tf.nest.flatten(leaf, expand_composites=True))
        count = int(self.examples(batch, np.shape))
        if not sizes or count in sizes:
            return ""
        others = "other features" if labels is None else "labels"
        return f"the features have first dimension {count} and the {others} {', '.join(map(str, sizes))}"


def _first_dimension(
    leaf: Any, batch: list[Tensor] | list[Array], position: int, shape: Callable[[Tensor], Tensor]
) -> Tensor | int:
    """The first dimension of a leaf whose dense tensors start at this position of the batch; 1 of a scalar."""
    if isinstance(leaf, tf1.SparseTensor):
        return batch[position + 2][0]
    if isinstance(leaf, tf.RaggedTensor):
        return shape(batch[position + 1])[0] - 1
    if leaf.shape.rank == 0:
        return 1
    sizes = shape(batch[position])
    if leaf.shape.rank is not None:
        return sizes[0]
    return [*sizes, 1][0] if isinstance(sizes, tuple) else tf1.concat([sizes, [1]], axis=0)[0]  # it may be a scalar


def _sides(element: Any) -> tuple[Any, Any]:
    """(features, labels)."""
    return element if isinstance(element, tuple) and len(element) == 2 else (element, None)


BATCHES_AHEAD = 2  # batches, of a step each; tf.data keeps as many more as the user's prefetch has


class DrawnAhead:
    """Draws batches ahead.

    draw: returns a batch, or raises why there is none; `next` raises the same in the place of that batch.
    """

    def __init__(self, draw: Callable[[], list[Array] | None]) -> None:
        self._draw = draw
        self._wanted_queue: SimpleQueue[bool] = SimpleQueue()
        self._drawn_queue: SimpleQueue[Future[list[Array] | None]] = SimpleQueue()
        self._want, self._give = self._wanted_queue.put, self._drawn_queue.put  # neither blocks
        for _ in range(BATCHES_AHEAD):
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


MOST_EMPTY = 1000  # batches in a row without an example, after which the input fails


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
        for _ in range(MOST_EMPTY):
            batch = self._draw()
            sizes = sorted({len(array) for array in batch})
            if len(sizes) > 1:
                raise UsageError(
                    f"{self._name} gave a batch whose tensors have {sizes[0]} to {sizes[-1]} entries along their first "
                    "axes, so it cannot be cut into examples; leave out batch_policy throughput"
                )
            if sizes[0]:
                return batch
        raise UsageError(f"{self._name} gave {MOST_EMPTY} batches in a row without an example")


MOST_IN_A_ROW = 10  # batches in a row that may fail; where all do, the batch is not the cause
MOST_REASONS = 10  # different ones that get a line each; some reasons have a number of their own for every record


class DataErrors:
    """Counts the bad batches of one source, the input or the steps; each has one thread.

    skip: whether a bad batch is skipped.  on_skip: called for each.

    A batch has a line in the log if its reason is new, or if the count of those before it has doubled: a damaged record
    of a small file is read over and over.  No line names the file, which TensorFlow's errors about records do not.
    """

    def __init__(
        self,
        skip: bool = False,
        log: Callable[..., None] = lambda *_, **__: None,
        on_skip: Callable[[], None] = lambda: None,
    ) -> None:
        self._skip = skip
        self._log = log
        self._on_skip = on_skip
        self._in_a_row = 0
        self._skipped = 0
        self._failed_steps = 0
        self._reasons: set[str] = set()

    def succeeded(self) -> None:
        """A batch was processed."""
        self._in_a_row = 0

    def skip(self, error: UserCodeError | UsageError) -> None:
        """Skips and counts a batch.

        Raises:
            UserCodeError, UsageError: the setting forbids it, or too many in a row were skipped.
        """
        if not self._skip:
            raise error
        self._in_a_row += 1
        self._skipped += 1
        if self._is_new(str(error)) or _is_power_of_two(self._skipped):
            self._log("batch_skipped", count=self._skipped, in_a_row=self._in_a_row, reason=error)
        self._on_skip()
        if self._in_a_row >= MOST_IN_A_ROW:  # the input may be asked again before the job has ended
            last = type(error)(f"{MOST_IN_A_ROW} batches in a row were passed over; the last: {error}")
            last.detail = error.detail
            raise last

    def step_failed(self, error: tf1.errors.OpError, graph: Graph, tries: int) -> bool:
        """Whether a step that has failed `tries` times continues with another batch; else it is repeated as it was.

        Raises:
            UserCodeError: the job ends.
            OpError: this was no error of the user's.
        """
        found = user_error(error, graph)
        if not isinstance(found, UserCodeError):
            raise error
        if tries == 1:
            self._failed_steps += 1
            if _is_power_of_two(self._failed_steps):
                self._log("step_failed", count=self._failed_steps, reason=found, then="the step is tried once more")
            return False
        self.skip(found)
        return True

    def _is_new(self, reason: str) -> bool:
        if reason in self._reasons or len(self._reasons) >= MOST_REASONS:
            return False
        self._reasons.add(reason)
        return True


def _is_power_of_two(count: int) -> bool:
    return count & (count - 1) == 0
