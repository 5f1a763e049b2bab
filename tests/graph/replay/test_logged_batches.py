"""Batches are found again by what the rounds log says of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.errors import UsageError
from psruntime.graph.input.batches import DataErrors
from psruntime.graph.input.input_stream import InputStream
from psruntime.graph.replay.job_replay import LoggedBatches, Numbered, OfShards
from psruntime.model import Context, Model


class Numbers:
    """An input whose batches have 4 examples: their numbers."""

    name = "numbers"

    def __init__(self) -> None:
        self._drawn = 0

    def draw_endlessly(self) -> list[Any]:
        self._drawn += 4
        return [np.arange(self._drawn - 4, self._drawn)]


def test_the_examples_of_a_share_are_found_again() -> None:
    """Batches 1 and 2 were in rounds that are undone; batch 3 was computed again for a later round."""
    batches = Numbered(cast("InputStream", Numbers()))
    parts = [(0, 0, 4), (3, 17, 6), (3, 17, 6), (4, 23, 1)]
    taken = [batches.take({"batch": number, "first": first, "size": size}) for number, first, size in parts]
    assert [array.tolist() for (array,) in taken] == [
        [0, 1, 2, 3], [17, 18, 19, 20, 21, 22], [17, 18, 19, 20, 21, 22], [23]
    ]  # fmt: skip


def test_a_batch_of_the_input_is_found_by_its_number() -> None:
    batches = Numbered(cast("InputStream", Numbers()))
    taken = [batches.take({"batch": number}) for number in (1, 1, 3)]
    assert [array.tolist() for (array,) in taken] == [[4, 5, 6, 7], [4, 5, 6, 7], [12, 13, 14, 15]]


def a_stream(minibatches: int = 1) -> InputStream:
    """15 examples in shards of 6, shuffled within each, batches of 4."""

    def input_fn(context: Context) -> Any:
        begin, end = context.shards(15, 6)
        numbers = tf1.data.Dataset.range(begin, end).shuffle(6, seed=context.seed)
        return numbers.batch(context.batch_size).map(lambda x: (x, x))

    model = Model("m", input_fn, lambda features, labels, mode: None)
    return InputStream(model, Context("train", 0, 1, 4, "", seed=3), minibatches)


@pytest.fixture
def stream() -> Iterator[InputStream]:
    inputs = a_stream()
    yield inputs
    inputs.close()


def of(*shards: list[int]) -> dict[str, Any]:
    return {"worker": 0, "incarnation": "a", "batch": 0, "examples": 4.0, "shards": list(shards)}


def test_a_batch_of_a_shard_is_the_same_whenever_it_is_read(stream: InputStream) -> None:
    """In another epoch, by itself, after others, and twice in a step."""
    batches = OfShards(stream)
    names = [[1, 0, 6, 0], [1, 0, 6, 1], [1, 6, 12, 0], [2, 6, 12, 1], [1, 12, 15, 0]]
    read = {tuple(name[1:]): batches.take(of(name))[0].tolist() for name in names}
    assert sorted(read[0, 6, 0] + read[0, 6, 1]) == [0, 1, 2, 3, 4, 5]
    assert len(read[6, 12, 0] + read[6, 12, 1]) == 6 and sorted(read[12, 15, 0]) == [12, 13, 14]
    assert read[0, 6, 0] != [0, 1, 2, 3], "they are shuffled"
    for name in [names[4], names[1], names[1], names[0], names[3], names[2]]:
        again, _ = batches.take(of([7, *name[1:]]))
        assert again.tolist() == read[tuple(name[1:])]
    step = batches.take(of(names[0], names[3], names[0]))
    assert [array.tolist() for array in step[::2]] == [read[0, 6, 0], read[6, 12, 1], read[0, 6, 0]]


def test_a_round_has_the_mini_batches_of_all_its_parts() -> None:
    inputs = LoggedBatches(lambda index, incarnation: a_stream(2))
    try:
        parts = [
            {**of([1, 0, 6, 0], [1, 0, 6, 1]), "examples": 6.0},
            {**of([1, 6, 12, 0]), "incarnation": "b"},
            {**of([1, 6, 12, 1]), "incarnation": "b", "examples": 0.0},
        ]
        found = inputs.parts({"parts": parts})
        assert [[len(arrays[0]) for arrays in part.minibatches] for part in found] == [[4, 2], [4]]
        assert sorted(np.concatenate([arrays[0] for arrays in found[0].minibatches]).tolist()) == [0, 1, 2, 3, 4, 5]
        assert [(part.worker, part.weight, part.divisor) for part in found] == [(0, 6.0, 3), (0, 4.0, 3)]
    finally:
        inputs.close()


def test_a_batch_that_is_not_here_is_named(stream: InputStream) -> None:
    batches = OfShards(stream)
    with pytest.raises(UsageError, match="examples 0 to 5 make 2 batches here, and made 3 at least in the job: give"):
        batches.take(of([1, 0, 6, 2]))
    assert batches.take(of([1, 0, 6, 1]))[0].size == 2


def test_a_log_of_another_input_is_refused() -> None:
    inputs = LoggedBatches(lambda index, incarnation: a_stream())
    try:
        part = {"worker": 1, "incarnation": "a", "batch": 4, "examples": 4.0}
        with pytest.raises(
            UsageError, match=r"calls context\.shards here, and batch 4 of worker 1 was of no data shard"
        ):
            inputs.parts({"parts": [part]})
    finally:
        inputs.close()


def test_what_the_job_passed_over_is_passed_over() -> None:
    """An example that cannot be processed takes its batch with it, and that has no number."""

    def input_fn(context: Context) -> Any:
        begin, end = context.shards(12, 12)
        numbers = tf1.data.Dataset.range(begin, end).map(lambda x: tf1.debugging.check_numerics(1.0 / float_of(x), "x"))
        return numbers.batch(4)

    def float_of(x: Any) -> Any:
        return tf1.cast(x - 5, tf1.float32)

    stream = InputStream(
        Model("m", input_fn, lambda features, labels, mode: None), Context("train", 0, 1, 4, "", seed=0), 1,
        DataErrors(skip=True),
    )  # fmt: skip
    try:
        (values,) = OfShards(stream).take(of([1, 0, 12, 1]))
        np.testing.assert_allclose(1 / values, [3, 4, 5, 6])
    finally:
        stream.close()
