"""Divides a whole number in proportion to weights, into whole numbers that have bounds."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from math import inf


def divided(total: int, weights: Sequence[int], most: Sequence[int]) -> list[int]:
    """Whole numbers that add up to `total`, each from 1 to its `most`, in proportion to the weights, which are from 1.

    The remainder goes, one by one, to the entry with the least for its weight at that point, and to the first of
    several: so the largest number for its weight is as small as it can be.
    It must be possible: len(weights) <= total <= sum(most).
    """
    sizes, free, left = [0] * len(weights), list(range(len(weights))), total
    while free:  # all arithmetic is of whole numbers, so nothing is lost by rounding
        weight = sum(weights[i] for i in free)
        low = [i for i in free if left * weights[i] < weight]
        high = [i for i in free if left * weights[i] > most[i] * weight]
        if not low and not high:
            for i in free:
                sizes[i] = left * weights[i] // weight
            _give(left - sum(sizes[i] for i in free), sizes, weights, most, free)
            break
        missing = sum(weight - left * weights[i] for i in low)  # times `weight`, as the next
        too_many = sum(left * weights[i] - most[i] * weight for i in high)
        takes_most = too_many >= missing  # then the others get more than this, so who is high stays so; or the reverse
        for i in high if takes_most else low:
            sizes[i] = most[i] if takes_most else 1
        free = [i for i in free if not sizes[i]]
        left = total - sum(sizes)
    return sizes


def _give(remainder: int, sizes: list[int], weights: Sequence[int], most: Sequence[int], takers: Sequence[int]) -> None:
    """Adds the remainder to the sizes of the takers, one by one."""

    def after_one_more(i: int) -> float:
        return (sizes[i] + 1) / weights[i] if sizes[i] < most[i] else inf

    waiting = [(after_one_more(i), i) for i in takers]
    heapify(waiting)
    for _ in range(remainder):
        i = waiting[0][1]
        sizes[i] += 1
        heapreplace(waiting, (after_one_more(i), i))
