"""What fails in the user's code while a job runs: it is named, tried again, then it ends the job or is passed over."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import APPLIED, RECEIVED
from psruntime.errors import PassingError, UsageError, UserCodeError
from psruntime.graph.input.batches import MOST_IN_A_ROW, DataErrors
from psruntime.model import Context, Model, ModelSpec
from tests.support.local_cluster import LocalCluster, Run, train
from tests.support.selection import long_but

HERE = r"made at .*test_data_errors\.py:\d+, failed: InvalidArgumentError: "
ROWS = 10
ALL = {"async": {}, "sync": {"mode": "sync"}, "local steps": {"local_steps": 2}, "pipeline": {"pipeline": 3}}


def labelled(labels: Callable[[int], Any], elements: int = 1000) -> Callable[[Context], Any]:
    """An input of ones [8, 5] with the labels that this gives for each batch."""

    def input_fn(_: Context) -> Any:
        def batches() -> Any:
            for i in range(elements):
                yield np.ones([8, 5], np.float32), np.asarray(labels(i), np.float32)

        signature = (tf.TensorSpec([None, 5], tf1.float32), tf.TensorSpec([None], tf1.float32))
        return tf1.data.Dataset.from_generator(batches, output_signature=signature)

    return input_fn


def plain(features: Any, labels: Any, _: str) -> ModelSpec:
    kernel = tf1.get_variable("kernel", [5, 1], initializer=tf1.zeros_initializer())
    wide = tf1.get_variable("wide", [5, 1], initializer=tf1.zeros_initializer())
    prediction = tf1.matmul(features, kernel + wide)[:, 0]
    return ModelSpec(tf1.reduce_mean(tf1.square(prediction - labels)), tf1.train.GradientDescentOptimizer, 0.01)


def reading(read: Callable[[Any, Any], Any]) -> Callable[[Any, Any, str], ModelSpec]:
    """The plain model, and what `read` makes of a table [ROWS, 3] and ids, which are the labels."""

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        table = tf1.get_variable("table", [ROWS, 3], initializer=tf1.zeros_initializer())
        spec = plain(features, labels, mode)
        return ModelSpec(spec.loss + tf1.reduce_sum(read(table, tf1.cast(labels, tf1.int32))), spec.optimizer, 0.01)

    return model_fn


def refuse(_: Any) -> Any:
    raise ValueError("a bad value")


def called(features: Any, labels: Any, mode: str) -> ModelSpec:
    checked = tf1.numpy_function(refuse, [labels], tf1.float32)
    checked.set_shape(labels.shape)
    return plain(features, checked, mode)


def in_a_function(table: Any, ids: Any) -> Any:
    return tf.function(lambda rows: tf1.gather(rows, ids))(table * 2.0)


def in_a_condition(table: Any, ids: Any) -> Any:
    return tf.cond(tf1.reduce_sum(ids) > 0, lambda: tf1.gather(table * 2.0, ids), lambda: tf1.zeros([8, 3]))


def short_at(*batches: int) -> Callable[[int], Any]:
    """One label is missing in these."""
    return lambda i: np.ones([7 if i in batches else 8])


def large_at(batch: int) -> Callable[[int], Any]:
    """An id that the table does not have, from this batch on."""
    return lambda i: np.full([8], 50.0 if i >= batch else 0.0)


def run(labels: Callable[[int], Any], model_fn: Any = plain, steps: int = 6, **settings: Any) -> Run:
    return train(LocalCluster(2), Model("my_model", labelled(labels), model_fn), steps, **settings)


@pytest.mark.parametrize("settings", long_but([ALL["sync"]], ALL.values()), ids=ALL)
def test_a_step_that_fails_twice_ends_the_job(settings: dict[str, Any]) -> None:
    if settings.get("mode") == "sync":  # where batches are weighed by their examples
        for first, refusal in (0, UsageError), (3, UserCodeError):  # wrong use, or the end of a job that has trained
            with pytest.raises(refusal, match="first dimension 8"):
                run(lambda i, first=first: np.zeros([7 if i >= first else 8]), **settings)
        return
    with pytest.raises(UserCodeError, match=rf"^operation \S+, {HERE}Incompatible shapes: \[8\] vs. \[7\]$") as caught:
        run(lambda i: np.zeros([7 if i >= 3 else 8]), **settings)
    assert "The operation was made here" in caught.value.detail
    assert "prediction - labels" in caught.value.detail


FAILING = {
    "lookup on a ps": (
        large_at(2),
        reading(tf1.nn.embedding_lookup),
        r".*ids of table table must be in \[0, 10\), got\] \[50\]",
    ),
    "gather": (large_at(2), reading(lambda table, ids: tf1.gather(table * 2.0, ids)), r"indices\[0\] = 50"),
    "function": (large_at(2), reading(in_a_function), r"indices\[0\] = 50"),
    "condition": (large_at(2), reading(in_a_condition), r"indices\[0\] = 50"),
    "numpy_function": (short_at(), called, "ValueError: a bad value"),
}


@pytest.mark.parametrize("settings", long_but([{}], [{}, {"local_steps": 2}]), ids=["one batch", "local steps"])
@pytest.mark.parametrize("failing", long_but(["lookup on a ps", "numpy_function"], FAILING))
def test_the_operation_and_its_line_are_found(failing: str, settings: dict[str, Any]) -> None:
    labels, model_fn, reason = FAILING[failing]
    with pytest.raises(UserCodeError, match=f"{HERE}{reason}"):
        run(labels, model_fn, **settings)


@pytest.mark.parametrize("settings", long_but([{}], ALL.values()), ids=ALL)
def test_a_bad_batch_is_passed_over_where_that_is_asked_for(settings: dict[str, Any]) -> None:
    done = run(short_at(2, 3), on_data_error="skip", **settings)
    first = 0 if "mode" in settings else 1  # a round is applied by the step that follows it
    assert sorted(result.global_step for result in done.results) == list(range(first, first + 6))
    passed_over = 1 if "local_steps" in settings else 2  # with two mini-batches a step both are in one
    assert done.skipped == ["step"] * passed_over == ["step"] * len(done.named("batch_skipped"))
    is_weighed = "mode" in settings  # before a step takes the batch, in mode sync
    reason = "first dimension" if is_weighed else "made at"
    assert all(reason in str(facts["reason"]) and "traceback" not in facts for facts in done.named("batch_skipped"))
    assert len(done.named("step_failed")) == (0 if is_weighed else passed_over)


@pytest.mark.parametrize("mode", long_but(["async"], ["async", "sync"]))
def test_a_batch_that_is_passed_over_leaves_nothing_behind(mode: str) -> None:
    with_bad, without = (run(labels, mode=mode, on_data_error="skip") for labels in (short_at(2), short_at()))
    assert with_bad.skipped and not without.skipped
    assert [r.loss for r in with_bad.results] == [r.loss for r in without.results]
    ledgers = with_bad.cluster.ledgers(with_bad.graph.plan)
    assert {(row[RECEIVED], row[APPLIED]) for row in ledgers.values()} == {(6, 6)}


def failing_at(number: int) -> tuple[list[int], Callable[[Any], Any]]:
    """The calls so far, and what gives its tensor back, but for that call, which fails."""
    calls: list[int] = []

    def seen(values: Any) -> Any:
        calls.append(len(calls) + 1)
        if calls[-1] == number:
            raise ValueError("this time")
        return values

    def of(tensor: Any) -> Any:
        result = tf1.numpy_function(seen, [tensor], tf1.float32)
        result.set_shape(tensor.shape)
        return result

    return calls, of


def test_a_batch_that_fails_once_is_taken_the_second_time() -> None:
    _, seen = failing_at(3)
    done = run(short_at(), lambda features, labels, mode: plain(features, seen(labels), mode))
    assert [result.global_step for result in done.results] == list(range(1, 7))
    assert len(done.named("step_failed")) == 1 and not done.skipped


@pytest.mark.parametrize("where", ["before the push", "beside it"])
def test_a_step_of_a_round_is_repeated_in_its_attempt_only_if_it_cannot_have_pushed(where: str) -> None:
    calls, seen = failing_at(3)

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        if where == "before the push":
            return plain(features, seen(labels), mode)
        return replace(plain(features, labels, mode), updates=[seen(labels).op])

    done = run(short_at(), model_fn, mode="sync")
    assert len(done.named("step_failed")) == 1 and not done.skipped
    assert done.control_plane.rounds.attempt == (6 if where == "before the push" else 7)
    assert {row[APPLIED] for row in done.cluster.ledgers(done.graph.plan).values()} == {6}
    assert len(calls) == 7, "each batch once, and the one that failed a second time"


@pytest.mark.long
def test_where_every_batch_is_bad_the_job_fails() -> None:
    with pytest.raises(
        UserCodeError, match=rf"^{MOST_IN_A_ROW} batches in a row were passed over; the last: operation .*{HERE}"
    ):
        run(lambda i: np.zeros([7 if i >= 2 else 8]), on_data_error="skip")


def bad_at(element: int) -> Callable[[int], Any]:
    def labels(i: int) -> Any:
        if i == element:
            raise RuntimeError("no such row\nin the file")
        return np.zeros([8])

    return labels


@pytest.mark.parametrize("mode", long_but(["async"], ["async", "sync"]))
def test_an_input_that_fails_ends_the_job(mode: str) -> None:
    said = r"^input_fn of my_model \(mode train\) failed at .*test_data_errors\.py:\d+: UnknownError: .*no such row$"
    with pytest.raises(UserCodeError, match=said) as caught:
        run(bad_at(3), mode=mode)
    assert "Traceback" in caught.value.detail


def mapped(bad: Callable[[int], bool]) -> Model:
    """A dataset whose map fails for these elements."""

    def input_fn(_: Context) -> Any:
        def check(i: Any) -> Any:
            divisor = tf1.numpy_function(lambda n: np.float32(0 if bad(int(n)) else 1), [i], tf1.float32)
            label = tf1.debugging.check_numerics(1.0 / divisor, "bad row")
            return tf1.ones([8, 5]), tf1.fill([8], label)

        return tf1.data.Dataset.range(1000).map(check)

    return Model("my_model", input_fn, plain)


def test_a_bad_element_is_passed_over_where_that_is_asked_for() -> None:
    done = train(LocalCluster(1), mapped(lambda i: i in (1, 4)), 6, on_data_error="skip")
    assert [result.global_step for result in done.results] == list(range(1, 7))
    assert done.skipped == ["input", "input"]
    assert all("bad row" in str(facts["reason"]) for facts in done.named("batch_skipped"))


def test_an_input_that_is_asked_again_after_the_limit_fails_again() -> None:
    skipped: list[int] = []
    errors = DataErrors(skip=True, on_skip=lambda: skipped.append(1))
    for _ in range(MOST_IN_A_ROW - 1):
        errors.skip(UserCodeError("bad"))
    for _ in range(3):
        with pytest.raises(UserCodeError, match=f"^{MOST_IN_A_ROW} batches in a row"):
            errors.skip(UserCodeError("bad"))
    errors.succeeded()
    errors.skip(UserCodeError("bad"))
    assert len(skipped) == MOST_IN_A_ROW + 3


def test_what_may_be_the_trouble_of_one_machine_does_not_end_the_job() -> None:
    def exhausted(_: Any) -> Any:
        raise MemoryError("no room")

    def model_fn(features: Any, labels: Any, mode: str) -> ModelSpec:
        seen = tf1.numpy_function(exhausted, [labels], tf1.float32)
        seen.set_shape(labels.shape)
        return plain(features, seen, mode)

    with pytest.raises(PassingError, match="ResourceExhaustedError: MemoryError: no room"):
        run(short_at(), model_fn)


def test_where_every_element_is_bad_the_job_fails() -> None:
    with pytest.raises(
        UserCodeError, match=rf"^{MOST_IN_A_ROW} batches in a row were passed over; the last: input_fn of my_"
    ):
        train(LocalCluster(1), mapped(lambda i: i > 1), 6, on_data_error="skip")


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (OSError(5, "Input/output error"), PassingError),
        pytest.param(ConnectionResetError(104, "Connection reset by peer"), PassingError, marks=pytest.mark.long),
        pytest.param(TimeoutError("timed out"), PassingError, marks=pytest.mark.long),
        (ValueError("no such row"), UserCodeError),
    ],
    ids=str,
)
def test_an_error_that_may_pass_is_told_from_one_of_the_data(raised: Exception, kind: type[UserCodeError]) -> None:
    def labels(i: int) -> Any:
        if i == 3:
            raise raised
        return np.zeros([8])

    with pytest.raises(UserCodeError, match=re.escape(str(raised))) as caught:
        run(labels)
    assert type(caught.value) is kind
    assert caught.value.exit_code == (75 if kind is PassingError else 1)


def test_what_is_passed_over_is_a_line_for_each_reason_and_each_doubling() -> None:
    lines: list[Any] = []
    skipped: list[int] = []
    errors = DataErrors(True, lambda event, **facts: lines.append((event, facts["count"])), lambda: skipped.append(1))
    for _ in range(1000):
        errors.skip(UserCodeError("a damaged record"))
        errors.succeeded()
    assert lines == [("batch_skipped", 2**n) for n in range(10)]
    for number in range(1000):
        errors.skip(UserCodeError(f"record {number} is damaged"))
        errors.succeeded()
    assert len(skipped) == 2000
    assert lines[10:] == [("batch_skipped", 1001 + n) for n in range(9)] + [("batch_skipped", 1024)]
