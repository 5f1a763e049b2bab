"""Contributions and the close on one ps: each counts once, an attempt is applied once, and the ledger balances."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

from psruntime.core.accounting.accounts import APPLIED, FENCED, NOT_FINITE, PENDING, RECEIVED, REPEATED, VOID
from psruntime.core.rounds.contribution import torn
from psruntime.core.rounds.round_messages import Complete
from tests.support.local_cluster import LocalCluster
from tests.support.polling import poll_until
from tests.support.round_bucket import KINDS, ROWS, WIDTH, WORKERS, RoundBucket

pytestmark = pytest.mark.optimised

LEDGER = (RECEIVED, APPLIED, PENDING, VOID, NOT_FINITE, REPEATED, FENCED)


@pytest.fixture(scope="module")
def cluster() -> LocalCluster:
    cluster = LocalCluster(1)
    cluster.fence(WORKERS)
    return cluster


@pytest.fixture(params=KINDS, scope="module")
def shared(request: Any, cluster: LocalCluster) -> RoundBucket:
    return RoundBucket(cluster, request.param)


@pytest.fixture
def bucket(shared: RoundBucket) -> Iterator[RoundBucket]:
    """A bucket that nobody has touched."""
    shared.reset()
    yield shared
    shared.check_balance()


def test_a_repeat_is_counted_once(bucket: RoundBucket) -> None:
    assert bucket.contribute(0, 1, 1.0) == PENDING
    assert bucket.position == 0
    assert bucket.contribute(1, 1, 2.0) == PENDING
    assert bucket.position == 1
    before = bucket.look()
    assert bucket.contribute(0, 1, 1.0) == REPEATED
    assert bucket.contribute(1, 1, 9.0) == REPEATED
    assert bucket.same(before, "ledger")
    assert bucket.books() == [1, 2, 0, 0]
    assert (bucket.total() == 3.0).all()
    assert bucket.ledger(*LEDGER) == [4, 0, 2, 0, 0, 2, 0]
    assert bucket.look()["square"] == 9.0 * ROWS * WIDTH


def test_a_cut_off_contribution_may_be_in_the_sum_uncounted(bucket: RoundBucket) -> None:
    """Why a worker never repeats one under its attempt: TensorFlow ends a run between any two operations."""
    assert bucket.contribute(0, 1, 1.0) == PENDING
    with pytest.raises(tf1.errors.UnavailableError):
        bucket.contribute(1, 1, 2.0, holds=True, timeout_ms=500)
    assert bucket.books() == [1, 1, 0, 0]
    assert bucket.contribute(1, 1, 2.0) == PENDING, "no row of a push says that it was added"
    assert (bucket.total() == 5.0).all()
    assert [bucket.contribute(worker, 2, 1.0 + worker) for worker in (0, 1)] == [PENDING, PENDING]
    assert (bucket.total() == 3.0).all(), "in the next attempt each is there once"


def test_an_older_attempt_is_void(bucket: RoundBucket) -> None:
    assert bucket.contribute(0, 3) == PENDING
    before = bucket.look()
    assert bucket.contribute(1, 2) == VOID
    assert bucket.same(before, "ledger")
    assert bucket.ledger(*LEDGER) == [2, 0, 1, 1, 0, 0, 0]
    assert bucket.contribute(1, 3) == PENDING, "a void one does not count as pushed"


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_fenced_incarnation_leaves_sum_and_books_alone(bucket: RoundBucket, attempt: int) -> None:
    """Also when its attempt is a new one, which would reset the sum."""
    assert bucket.contribute(0, 1) == PENDING
    before = bucket.look()
    assert bucket.contribute(1, attempt, incarnation=49) == FENCED
    assert bucket.same(before, "ledger")
    assert bucket.ledger(*LEDGER) == [2, 0, 1, 0, 0, 0, 1]


def test_a_new_attempt_begins_a_new_sum_and_what_was_pending_is_void(bucket: RoundBucket) -> None:
    bucket.contribute(0, 1, 1.0)
    bucket.contribute(1, 1, 2.0)
    assert bucket.contribute(1, 2, 4.0) == PENDING
    assert (bucket.total() == 4.0).all()
    assert bucket.books() == [2, 1, 0, 0]
    assert bucket.ledger(*LEDGER) == [3, 0, 1, 2, 0, 0, 0]


def test_a_contribution_that_is_not_finite_counts_without_a_gradient(bucket: RoundBucket) -> None:
    assert bucket.contribute(0, 1, 3.0) == PENDING
    assert bucket.contribute(1, 1, np.nan, finite=False) == NOT_FINITE
    assert (bucket.total() == 3.0).all()
    assert bucket.books() == [1, 2, 0, 0]
    assert bucket.ledger(*LEDGER) == [2, 0, 1, 0, 1, 0, 0]
    assert bucket.close(1, 2) == [1, 2, 1, 1]
    assert (bucket.master() == -3.0).all()
    assert bucket.ledger(*LEDGER) == [2, 1, 0, 0, 1, 0, 0]


def test_the_first_may_be_the_one_that_is_not_finite(bucket: RoundBucket) -> None:
    bucket.contribute(0, 1, 5.0)
    assert bucket.contribute(0, 2, np.nan, finite=False) == NOT_FINITE
    assert bucket.look()["square"] == 0.0, "nothing is summed, although something is held"
    assert bucket.contribute(1, 2, 3.0) == PENDING
    assert (bucket.total() == 3.0).all()
    assert bucket.ledger(*LEDGER) == [3, 0, 1, 1, 1, 0, 0]
    assert bucket.close(2, 2) == [2, 2, 2, 2]
    assert (bucket.master() == -3.0).all()


@pytest.mark.parametrize(
    "units", [(4.0, 1.0, 1.0), (1.0, 4.0, 1.0), (4.0, 4.0, 0.0), (0.0, 4.0, 4.0), (0.5, 0.25, 8.0)]
)
def test_gradients_of_several_units_add_up(bucket: RoundBucket, units: tuple[float, ...]) -> None:
    """Batches of other sizes, and a mean that was divided by another number of members.  All is exact in any order."""
    gradients = (1.0, -2.0, 8.0)
    bucket.contribute(3, 1, 5.0, unit=2.0)  # an attempt that is given up
    for worker, (gradient, unit) in enumerate(zip(gradients, units, strict=True)):
        assert bucket.contribute(worker, 2, gradient, unit=unit) == PENDING, "one of no weight is still one"
    total = sum(gradient * unit for gradient, unit in zip(gradients, units, strict=True))
    assert (bucket.total() == total).all()
    assert bucket.look()["square"] == total**2 * ROWS * WIDTH
    assert bucket.close(2, 3, 0.125) == [2, 3, 2, 2]
    assert (bucket.master() == -total / 8).all()


@pytest.mark.parametrize(("factor", "multiplied"), [(1 / 96, False), (1 / 64, True)])
def test_a_sum_that_is_the_mean_already_is_applied_as_it_is(
    bucket: RoundBucket, factor: float, multiplied: bool
) -> None:
    third = np.float32(1 / 3)
    for worker in range(3):
        bucket.contribute(worker, 1, third, unit=96.0)
    assert multiplied == any(name.endswith("/multiplied") for name in bucket.ran_in_close(1, 3, factor))
    np.testing.assert_array_equal(bucket.master(), -(third + third + third) * np.float32(factor * 96))


@pytest.mark.parametrize(("attempt", "members"), [(1, 3), (1, 1), (2, 2), (0, 2)])
def test_a_close_of_another_attempt_or_of_too_few_does_nothing(bucket: RoundBucket, attempt: int, members: int) -> None:
    bucket.contribute(0, 1)
    bucket.contribute(1, 1)
    before = bucket.look()
    assert bucket.close(attempt, members) == [1, 2, 0, 0]
    assert bucket.same(before)


def test_a_close_applies_once(bucket: RoundBucket) -> None:
    bucket.contribute(0, 1, 2.0)
    bucket.contribute(1, 1, 6.0)
    assert bucket.close(1, 2, 0.25) == [1, 2, 1, 1]
    before = bucket.look()
    assert (bucket.master() == -2.0).all()
    assert before["version"] == 1
    assert bucket.close(1, 2, 0.25) == [1, 2, 1, 1]
    assert bucket.contribute(2, 1) == VOID
    assert bucket.same(before, "ledger")
    assert bucket.ledger(*LEDGER) == [3, 2, 0, 1, 0, 0, 0]
    assert bucket.contribute(1, 2, 4.0) == PENDING
    assert bucket.close(2, 1, 1.0, worker=1) == [2, 1, 2, 2]
    assert (bucket.master() == -2.0 - (0.5 * 2.0 + 4.0)).all(), "with the momentum of one update, not two"


def test_a_fenced_chief_closes_nothing(bucket: RoundBucket) -> None:
    bucket.contribute(0, 1)
    before = bucket.look()
    assert bucket.close(1, 1, incarnation=49) == [1, 1, 0, 0]
    assert bucket.same(before)


def test_a_factor_of_zero_applies_nothing_and_the_round_is_over(bucket: RoundBucket) -> None:
    bucket.contribute(0, 1)
    bucket.close(1, 1)
    bucket.contribute(0, 2)
    bucket.contribute(1, 2)
    before = bucket.look()
    assert bucket.close(2, 2, 0.0) == [2, 2, 2, 2]
    assert bucket.same(before, "books", "ledger")
    assert bucket.ledger(*LEDGER) == [3, 1, 0, 0, 2, 0, 0]
    assert bucket.close(2, 2, 1.0) == [2, 2, 2, 2]
    assert bucket.same(before, "books", "ledger")


def test_the_books_of_rounds_that_apply_nothing_are_exact(bucket: RoundBucket) -> None:
    """Intent and end are written to one variable, the one right after the other."""
    for attempt in range(1, 51):
        bucket.contribute(0, attempt)
        assert bucket.close(attempt, 2) == [attempt, 1, attempt - 1, attempt - 1], "not complete"
        bucket.close(attempt, 1, 0.0)
        assert bucket.books() == [attempt, 1, attempt, attempt]
    assert bucket.ledger(*LEDGER) == [50, 0, 0, 0, 50, 0, 0]


def test_a_round_without_any_finite_contribution_applies_nothing(bucket: RoundBucket) -> None:
    bucket.contribute(0, 1, 0.0, finite=False)
    before = bucket.look()
    assert bucket.close(1, 1, 1.0) == [1, 1, 1, 1]
    assert bucket.same(before, "books")


def test_what_is_sealed_is_never_applied(bucket: RoundBucket) -> None:
    bucket.contribute(0, 1)
    bucket.contribute(1, 1)
    bucket.seal()
    before = bucket.look()
    assert bucket.close(1, 2) == [1, 0, 0, 0]
    assert bucket.contribute(0, 1) == REPEATED
    assert bucket.close(1, 2) == [1, 0, 0, 0]
    assert bucket.same(before, "ledger")
    bucket.contribute(0, 2, 1.0)
    assert bucket.close(2, 1) == [2, 1, 2, 2]
    assert bucket.ledger(*LEDGER) == [4, 1, 0, 2, 0, 1, 0]


def test_an_update_that_is_cut_off_leaves_the_bucket_torn(bucket: RoundBucket) -> None:
    """Nobody can tell how far it came, so it is neither repeated nor taken for applied; the mutex is free again."""
    bucket.contribute(0, 1)
    with pytest.raises(tf1.errors.InvalidArgumentError, match="cut off"):
        bucket.close(1, 1, fails=True)
    assert bucket.close(1, 1) == [1, 1, 1, 0]
    assert bucket.look()["version"] == 0
    assert bucket.contribute(1, 1) == VOID
    reason = torn([bucket.books()], Complete(1, 1, 1, 8.0))
    assert reason == "1 sections were cut off in their update"


def test_the_sum_of_a_table_equals_the_dense_sum(cluster: LocalCluster) -> None:
    """Rows that meet, rows that do not, and a batch that looked up none."""
    buckets = [RoundBucket(cluster, kind) for kind in KINDS]
    random = np.random.default_rng(4)
    rows = [[0, 2, 5], [], [2, 3], [1, 2, 3, 4, 5]]
    gradients = [random.integers(-8, 9, [ROWS, WIDTH]) / 4 for _ in rows]  # exact in any order
    for bucket in buckets:
        for attempt, first in ((1, 0), (2, 1)):  # also with the empty one first
            for worker in (*range(first, 4), *range(first)):
                assert bucket.contribute(worker, attempt, gradients[worker], rows[worker]) == PENDING
            expected = sum(g * np.isin(np.arange(ROWS), r)[:, None] for g, r in zip(gradients, rows, strict=True))
            np.testing.assert_array_equal(bucket.total(), expected)
            assert bucket.look()["square"] == np.square(expected).sum()
        assert bucket.close(2, 4, 0.5) == [2, 4, 2, 2]
    np.testing.assert_array_equal(buckets[0].master(), buckets[1].master())


def test_a_second_close_waits_for_the_update_that_is_under_way(bucket: RoundBucket) -> None:
    """The worker that asked for it may be gone; seen half done, the bucket would count as torn, or be pulled too early.

    So it is also while another run that waited is cancelled: TensorFlow's mutex is let go of then.
    """
    bucket.contribute(0, 1)
    with ThreadPoolExecutor(2) as pool:
        closing = pool.submit(bucket.close, 1, 1, holds=True)
        try:
            poll_until(lambda: bucket.books() == [1, 1, 1, 0], 60, "the update is under way")
            with pytest.raises(tf1.errors.UnavailableError):  # the time is over
                bucket.close(1, 1, timeout_ms=300)
            another = pool.submit(bucket.close, 1, 1)
            assert not wait([another], timeout=1.0).done
            assert bucket.books() == [1, 1, 1, 0]
        finally:
            bucket.go_on()
        assert closing.result(60) == another.result(60) == [1, 1, 1, 1]
    assert bucket.close(1, 1) == [1, 1, 1, 1]
    assert bucket.look()["version"] == 1


@pytest.mark.parametrize(("dtype", "large"), [("float16", 2048), ("bfloat16", 256)])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_summed_in_float32(cluster: LocalCluster, kind: str, dtype: str, large: int) -> None:
    """In half precision itself, `large` + 1 is `large`."""
    bucket = RoundBucket(cluster, kind, dtype)
    for worker, value in enumerate([large, 1, 1, 2]):
        bucket.contribute(worker, 1, value)
    assert (bucket.total() == large + 4).all()
    bucket.close(1, 4, 0.5)
    assert (bucket.master() == -(large / 2 + 2)).all()


def test_workers_that_contribute_at_once_and_twice_lose_nothing(bucket: RoundBucket) -> None:
    rounds, applied = 20, []
    barrier = threading.Barrier(len(WORKERS), timeout=60)

    def work(worker: int) -> None:
        for attempt in range(1, rounds + 1):
            barrier.wait()
            for _ in range(2):
                assert bucket.contribute(worker, attempt, float(worker)) in (PENDING, REPEATED)
            barrier.wait()
            books = bucket.close(attempt, len(WORKERS), 0.125, worker=worker)  # all close; one does it
            applied.append(books[3] == attempt)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in WORKERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(applied) == rounds * len(WORKERS) and all(applied)
    assert bucket.look()["version"] == rounds
    assert bucket.ledger(*LEDGER) == [8 * rounds, 4 * rounds, 0, 0, 0, 4 * rounds, 0]
    velocity = master = 0.0
    for _ in range(rounds):
        velocity = 0.5 * velocity + 0.125 * 6
        master -= velocity
    np.testing.assert_allclose(bucket.master(), master, rtol=1e-6)
