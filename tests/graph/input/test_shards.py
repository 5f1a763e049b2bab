"""An input that is read shard by shard: which examples are drawn, what the coordinator hears, and users' mistakes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import tensorflow.compat.v1 as tf1

from psruntime.config import JobConfig
from psruntime.core.shards.shard_messages import Shard, Sharding
from psruntime.errors import UsageError, UserCodeError
from psruntime.graph.input.batches import DataErrors
from psruntime.graph.input.input_stream import InputStream, require_fit
from psruntime.model import Context, Model
from tests.support.polling import poll_until
from tests.support.shards import LocalShards, LockedShards, counting_model

CONTEXT = Context("train", 0, 1, 4, "", 3)
EXAMPLES = 22  # in shards of 8: 2, 2 and 2 batches, the last with 2 examples
MODEL = counting_model(EXAMPLES, 8)


def stream(source: LocalShards, model: Model = MODEL, **more: Any) -> InputStream:
    inputs = InputStream(model, CONTEXT, **more)
    inputs.take_shards_from(source)
    return inputs


def read(inputs: InputStream, until: Callable[[], bool], limit: int = 1000) -> list[int]:
    """Applies at most `limit` batches; the ids of all."""
    ids: list[int] = []
    end_s = time.monotonic() + 60.0
    while not until():
        batch = inputs.draw_if_any()
        if batch is not None:
            ids += [int(each) for array in batch for each in array]
            inputs.applied(batch)
            limit -= 1
        else:
            time.sleep(0.001)  # the thread that draws ahead, too, needs the processor
        over = f"read {len(ids)} examples, and it did not end: {inputs.why_none}"
        assert limit and time.monotonic() < end_s, over
    return ids


def test_one_worker_reads_every_example_of_every_epoch_once() -> None:
    shards = LockedShards(epochs=3)
    source = LocalShards(shards)
    ids = read(stream(source), lambda: shards.over)
    assert Counter(ids) == dict.fromkeys(range(EXAMPLES), 3)
    assert Counter(ids[:EXAMPLES]) == dict.fromkeys(range(EXAMPLES), 1), "one epoch after the other"
    assert len(source.taken) == 9


def test_what_a_lost_worker_had_begun_is_read_by_another_and_nothing_else() -> None:
    shards = LockedShards(epochs=1)
    first, second = stream(LocalShards(shards, 1)), LocalShards(shards, 2)
    begun = first.draw_endlessly()
    first.applied(begun)
    ids = read(stream(second), lambda: second.reason.startswith("others hold") and len(second.taken) < 3, limit=5)
    shards.lose(1, "it is gone")
    ids += read(stream(second), lambda: shards.over)
    assert set(ids) == set(range(EXAMPLES))
    assert max(Counter(ids).values()) == 1


def test_a_worker_that_waits_has_no_batch_and_says_why() -> None:
    shards = LockedShards(epochs=1)
    holder = stream(LocalShards(shards, 1), counting_model(8, 8))
    held = holder.draw_endlessly()
    waiting = stream(LocalShards(shards, 2), counting_model(8, 8))
    assert waiting.draw_if_any() is None
    assert waiting.why_none == "others hold the rest of epoch 1"
    poll_until(lambda: waiting.is_ready, 10.0, "it to ask again")
    holder.applied(held)
    read(holder, lambda: shards.over)


def test_a_batch_that_is_put_back_is_drawn_again() -> None:
    shards = LockedShards(epochs=1)
    inputs = stream(LocalShards(shards))
    batch = inputs.draw_endlessly()
    inputs.put_back(batch)
    assert inputs.is_ready and inputs.draw_endlessly() is batch
    inputs.put_back(batch)
    assert Counter(read(inputs, lambda: shards.over)) == dict.fromkeys(range(EXAMPLES), 1)


def test_a_step_of_several_mini_batches_may_be_of_two_shards_and_the_last_is_filled_up() -> None:
    shards = LockedShards(epochs=1)
    inputs = stream(LocalShards(shards), minibatches=4)
    ids = read(inputs, lambda: shards.over)
    assert set(ids) == set(range(EXAMPLES))
    assert sum(Counter(ids).values()) - EXAMPLES <= 2 * CONTEXT.batch_size, "6 mini-batches make 2 steps of 4"


def test_a_batch_that_the_input_cannot_make_is_passed_over_and_its_shard_done() -> None:
    def spoilt(dataset: Any) -> Any:
        return dataset.map(lambda i: tf1.debugging.check_numerics(1.0 / tf1.cast(i - 5, tf1.float32), "bad") + 0 * 5)

    skipped: list[int] = []
    shards = LockedShards(epochs=1)
    errors = DataErrors(True, lambda *_, **__: None, lambda: skipped.append(1))
    inputs = stream(LocalShards(shards), counting_model(EXAMPLES, 8, change=spoilt), data_errors=errors)
    values = read(inputs, lambda: shards.over)
    assert skipped and len(values) < EXAMPLES


@pytest.mark.parametrize("fails", ["a batch", "the opening"])
def test_what_ends_the_job_is_not_told_as_read(fails: str) -> None:
    """Every later draw says the same: the job goes on with other workers, which must be given the shard."""

    def spoilt(dataset: Any) -> Any:
        if fails == "the opening":
            return dataset.take(tf1.numpy_function(refuse, [tf1.constant(8, tf1.int64)], tf1.int64))
        return dataset.map(lambda i: tf1.debugging.check_numerics(1.0 / tf1.cast(i - 5, tf1.float32), "bad"))

    def refuse(count: Any) -> Any:
        opened.append(1)
        if len(opened) > 1:  # the first is a look at how much there is
            raise OSError("the storage is away")
        return count

    opened: list[int] = []

    shards = LockedShards(epochs=1)
    source = LocalShards(shards)
    inputs = stream(source, counting_model(8, 8, change=spoilt))
    for _ in range(4):
        with pytest.raises(UserCodeError):
            while True:
                inputs.applied(inputs.draw_endlessly())
    source.take(Sharding(8, 8), inputs.shards._unreported() if inputs.shards else [], lambda: True)
    assert not shards.over and len(source.taken) == 1


def test_a_step_is_not_filled_up_while_the_coordinator_is_away() -> None:
    class Away(LocalShards):
        asked = 0

        def take(self, *arguments: Any) -> tuple[Shard | None, bool]:
            self.asked += 1
            return (None, False) if 1 < self.asked < 4 else super().take(*arguments)

    shards = LockedShards(epochs=1)
    inputs = stream(Away(shards), counting_model(8, 4), minibatches=2)
    assert Counter(read(inputs, lambda: shards.over)) == dict.fromkeys(range(8), 1)


def test_the_default_size_is_8_batches() -> None:
    inputs = InputStream(counting_model(1000), CONTEXT)
    assert inputs.shards and inputs.shards.sharding.size == 8 * CONTEXT.batch_size


def test_an_evaluation_reads_all() -> None:
    inputs = InputStream(MODEL, replace(CONTEXT, mode="eval"))
    assert inputs.shards is None
    ids: list[int] = []
    while (batch := inputs.draw()) is not None:
        ids += batch[0].tolist()
    assert ids == list(range(EXAMPLES))


def test_outside_of_a_job_the_range_is_all() -> None:
    assert CONTEXT.shards(7) == (0, 7)


@pytest.mark.parametrize(
    ("input_fn", "said"),
    [
        (lambda c: c.shards(0), "examples of context.shards must be at least 1, got 0"),
        (lambda c: c.shards(8, 0), "size of context.shards must be at least 1, got 0"),
        (lambda c: c.shards(8.5), "examples of context.shards must be a whole number, got 8.5"),
        (lambda c: (c.shards(8), c.shards(8)), "context.shards was called twice"),
        (
            lambda c: (c.shards(8), tf1.data.Dataset.range(8).batch(2))[1],
            "does not use the range that it gives, so each shard would be all of the data",
        ),
        (
            lambda c: tf1.data.Dataset.range(*c.shards(8)).batch(2).repeat(),
            "gives data without an end; a shard is read once: leave out repeat()",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line(input_fn: Any, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        InputStream(Model("my.model", input_fn, lambda *_: None), CONTEXT)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_settings_that_do_not_fit_are_refused() -> None:
    sharded = InputStream(MODEL, CONTEXT)
    endless = InputStream(Model("my.model", lambda c: tf1.data.Dataset.range(8).batch(2), lambda *_: None), CONTEXT)
    require_fit(JobConfig(epochs=2, mode="sync"), sharded)
    require_fit(JobConfig(), endless)
    with pytest.raises(UsageError, match=r"^input_fn of my\.model \(mode train\) does not call context\.shards: "):
        require_fit(JobConfig(epochs=2), endless)
    many = InputStream(MODEL, CONTEXT, minibatches=257)
    with pytest.raises(UsageError, match=r"at most 256 mini-batches, and --local-steps and --devices make 257$"):
        require_fit(JobConfig(), many)
    with pytest.raises(UsageError, match="which is not for batch_policy throughput"):
        require_fit(JobConfig(mode="sync", batch_policy="throughput"), sharded)
    require_fit(JobConfig(mode="bounded", bound=1), sharded)
    with pytest.raises(UsageError, match="which is not for --schedule: with data shards the mode of a job stays"):
        require_fit(JobConfig(schedule="async:9, sync"), sharded)


def test_an_input_without_a_batch_in_any_shard_is_refused() -> None:
    empty = counting_model(EXAMPLES, 8, change=lambda dataset: dataset.filter(lambda i: i < 0))
    with pytest.raises(UsageError, match="gave no batch for any shard of 8 examples"):
        stream(LocalShards(LockedShards()), empty).draw_if_any()
