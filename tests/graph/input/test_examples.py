"""Batches are joined and cut: whatever sizes are taken, the examples come once each, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1
from hypothesis import given
from hypothesis import strategies as st

from psruntime.errors import UsageError, UserCodeError
from psruntime.graph.input.batches import MOST_EMPTY, Examples
from psruntime.graph.input.input_stream import InputStream
from psruntime.model import Context, Model, ModelSpec
from tests.graph.input.test_batch_layout import stream


def batches(sizes: list[int]) -> Iterator[list[Any]]:
    """Of (numbers [n], their names [n, 2]); when the sizes are used up they come again."""
    first = 0
    while True:
        for size in sizes:
            numbers = np.arange(first, first + size)
            yield [numbers, np.array([[b"a%d" % n, b"b%d" % n] for n in numbers], object).reshape(size, 2)]
            first += size


sizes = st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any)


@given(sizes, st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=8))
def test_the_examples_come_in_their_order_whatever_is_taken(made: list[int], taken: list[tuple[bool, int]]) -> None:
    drawn = batches(made)
    examples, first = Examples(lambda: next(drawn), "input"), 0
    assert examples.batch_size == next(size for size in made if size)
    for leaves_out, size in taken:
        assert examples.taken == first
        if leaves_out:
            examples.skip(size)
        else:
            numbers, names = examples.take(size)
            assert numbers.tolist() == list(range(first, first + size))
            assert names.tolist() == [[b"a%d" % n, b"b%d" % n] for n in numbers]
        first += size


def test_an_input_that_fails_loses_no_example() -> None:
    drawn, tries = batches([4]), iter([True, False, True, True])

    def draw() -> list[Any]:
        if not next(tries):
            raise UserCodeError("no data")
        return next(drawn)

    examples = Examples(draw, "input")
    with pytest.raises(UserCodeError):
        examples.take(6)
    assert examples.taken == 0 and examples.take(6)[0].tolist() == [0, 1, 2, 3, 4, 5]


def test_what_has_no_examples_along_its_first_axes_is_refused() -> None:
    uneven = Examples(lambda: [np.zeros([4, 2]), np.zeros(3)], "input_fn of m")
    with pytest.raises(
        UsageError, match="input_fn of m gave a batch whose tensors have 3 to 4 entries along their first"
    ):
        uneven.take(1)
    with pytest.raises(UsageError, match=f"input_fn of m gave {MOST_EMPTY} batches in a row without an example"):
        Examples(lambda: [np.zeros([0, 2])], "input_fn of m").take(1)


def input_fn(context: Context) -> Any:
    return tf1.data.Dataset.range(100).batch(context.batch_size, drop_remainder=True)


def model_fn(*_: Any) -> ModelSpec:
    raise AssertionError


CONTEXT = Context("train", 0, 1, 4, "", 3)


def test_a_model_whose_batches_are_cut_takes_any_number_of_examples() -> None:
    for any_size, length in ((True, None), (False, 4)):
        layout = InputStream(Model("m", input_fn, model_fn), CONTEXT, any_size=any_size).layout
        with tf1.Graph().as_default():
            assert [tensor.shape.as_list() for tensor in layout.placeholders()[2]] == [[length]]


def test_batches_that_are_not_dense_cannot_be_cut() -> None:
    with pytest.raises(
        UsageError, match=r"m \(mode train\) yields sparse, ragged or scalar tensors, which cannot be cut"
    ):
        InputStream(Model("m", stream(kind="sparse"), model_fn), CONTEXT, any_size=True)
