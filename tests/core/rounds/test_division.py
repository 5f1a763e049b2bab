"""A whole number is divided by weights, within bounds, and no other division has a smaller largest part."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from psruntime.core.rounds.shares import divided

Problem = tuple[int, list[int], list[int]]


@st.composite
def problems(draw: st.DrawFn, parts: int, largest: int) -> Problem:
    """(total, weights, most) that can be divided."""
    count = draw(st.integers(1, parts))
    each = st.lists(st.integers(1, largest), min_size=count, max_size=count)
    weights, most = draw(each), draw(each)
    return draw(st.integers(count, sum(most))), weights, most


@settings(deadline=None)
@given(problems(parts=12, largest=1 << 45))
def test_the_parts_add_up_and_keep_to_their_bounds(problem: Problem) -> None:
    total, weights, most = problem
    sizes = divided(total, weights, most)
    assert sum(sizes) == total
    assert all(1 <= size <= limit for size, limit in zip(sizes, most, strict=True))


@settings(deadline=None)
@given(problems(parts=4, largest=6))
def test_no_other_division_has_a_smaller_largest_part_for_its_weight(problem: Problem) -> None:
    total, weights, most = problem

    def largest(sizes: tuple[int, ...]) -> Fraction:
        return max(Fraction(size, weight) for size, weight in zip(sizes, weights, strict=True))

    others = [sizes for sizes in product(*(range(1, limit + 1) for limit in most)) if sum(sizes) == total]
    assert largest(tuple(divided(total, weights, most))) == min(map(largest, others))


@settings(deadline=None)
@given(problems(parts=8, largest=1000))
def test_without_bounds_in_the_way_each_part_is_close_to_its_proportion(problem: Problem) -> None:
    _, weights, _ = problem
    total = 1000 * sum(weights)
    sizes = divided(total + 1, weights, [2 * total] * len(weights))
    assert [size - 1000 * weight for size, weight in zip(sizes, weights, strict=True)].count(0) == len(weights) - 1
