"""What the processes of a job cost, over several moments."""

from __future__ import annotations

import pytest

from tests.chaos.burden import BYTES, Burden


def test_the_middle_of_several_moments_is_that_of_each_number() -> None:
    moments = [
        Burden(5, threads, files, size, {"ps-0": size}) for threads, files, size in ((9, 1, 30), (7, 3, 10), (8, 2, 20))
    ]
    assert Burden.middle_of(moments) == Burden(5, 8, 2, 20, {"ps-0": 20})


def test_more_bytes_than_before_are_told() -> None:
    before = Burden(5, 100, 100, 1000)
    Burden(5, 100, 100, 1000 + BYTES).check(before)
    with pytest.raises(AssertionError):
        Burden(5, 100, 100, 1001 + BYTES).check(before)
