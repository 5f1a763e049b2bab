"""The window of pushes that a bucket has accepted: against a set, for pushes in any order."""

from __future__ import annotations

import tensorflow.compat.v1 as tf1
from hypothesis import given, settings
from hypothesis import strategies as st

from psruntime.config.job_settings import MOST_UNDER_WAY
from psruntime.graph.buckets.bucket_store import Numbers
from psruntime.graph.push.guard import WINDOW_SIZE, is_in, with_one_more
from tests.support.selection import examples


class Window:
    """One worker's row, driven by hand."""

    def __init__(self) -> None:
        with tf1.Graph().as_default() as graph:
            self.fed = [tf1.placeholder(tf1.int64, []) for _ in range(3)]
            numbers = Numbers("/cpu:0")
            self.fetched = is_in(*self.fed, numbers), *with_one_more(*self.fed, numbers)
        self.session = tf1.Session(graph=graph)

    def push(self, window: int, highest: int, sequence: int) -> tuple[bool, int, int]:
        """(whether it was in, the row after it)."""
        was_in, *row = self.session.run(self.fetched, dict(zip(self.fed, (window, highest, sequence), strict=True)))
        return bool(was_in), *((window, highest) if was_in else map(int, row))  # type: ignore[return-value]


WINDOW = Window()


@given(st.lists(st.integers(-MOST_UNDER_WAY, MOST_UNDER_WAY), min_size=1, max_size=40), st.integers(1, 2**40))
@settings(deadline=None, max_examples=examples(150))
def test_pushes_in_any_order_are_each_accepted_once(jumps: list[int], start: int) -> None:
    accepted = {start}
    _, window, highest = WINDOW.push(0, start, start)
    for jump in jumps:
        sequence = max(1, highest + jump)
        expected = sequence in accepted
        was_in, window, highest = WINDOW.push(window, highest, sequence)
        assert was_in == expected
        accepted.add(sequence)
        assert highest == max(accepted)


def test_the_ends_of_the_window() -> None:
    _, window, highest = WINDOW.push(0, 100, 100)
    assert WINDOW.push(window, highest, 100)[0]
    assert not WINDOW.push(window, highest, 100 - WINDOW_SIZE + 1)[0]
    assert WINDOW.push(window, highest, 100 - WINDOW_SIZE)[0], "what is older counts as accepted"
    _, window, highest = WINDOW.push(window, highest, 100 + WINDOW_SIZE - 1)
    assert WINDOW.push(window, highest, 100)[0]
    _, window, highest = WINDOW.push(window, highest, 10_000)
    assert (window, highest) == (1, 10_000)


def test_a_pipeline_fits_into_the_window() -> None:
    assert 2 * MOST_UNDER_WAY <= WINDOW_SIZE + 2
